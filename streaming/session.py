"""The Spark session: every setting that the coordinator's latency and correctness lean on, each with its reason."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from streaming.jars import spark_jars
from streaming.java import find_java

STATE_STORE = "spark.sql.streaming.stateStore"
CHECKPOINT_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
SHUFFLE_PARTITIONS = 1
TASK_FAILURES = 2  # a task whose Python worker died is tried once more before the query fails


def settings() -> dict[str, str]:
    """Spark's settings for the coordinator; those of the state are pinned in the checkpoint at its first batch."""
    return {
        # Not spark.jars.packages, which also puts the jars on every Python worker's path.
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.sql.session.timeZone": "UTC",
        # Each partition is two passes of a Python worker a batch, rows or not: no more than cores, and few.
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        # Else a task waits up to 3 s for the executor that has the partition's consumer in its cache.
        "spark.locality.wait": "0",
        "spark.speculation": "false",
        # The default forks some 30 processes a batch on a local disk.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILE_MANAGER,
        # Ticks come all the time, so a batch without data is never needed for a timeout to fire.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        f"{STATE_STORE}.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Saves a read for each write; the number of rows shown in the UI is then 0.
        f"{STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # Loopback only: the driver, its block manager and the UI are nobody else's business.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


class Session:
    """A local Spark with the coordinator's settings, in a JVM of its own that ends with this process.

    `ui_port` 0 takes a free port, None switches the UI off. `log_path` gets the JVM's output. `hold_fd` stays open until
    the JVM has ended, see `checkpoints.folder.Folder.lock`. `extra` are further Spark settings.
    """

    def __init__(
        self,
        *,
        log_path: Path,
        app_name: str = "group-coordinator",
        cores: int | None = None,
        ui_port: int | None = None,
        hold_fd: int | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        # pyspark takes these two from the environment alone; else workers run whatever python3 is first on the path.
        os.environ["JAVA_HOME"] = str(find_java().parent.parent)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        conf = SparkConf(loadDefaults=False).setAppName(app_name)
        conf.setMaster(f"local[{cores or os.cpu_count() or 1},{TASK_FAILURES}]")
        conf.setAll((settings() | dict(extra or {})).items())  # type: ignore[arg-type]
        conf.set("spark.ui.enabled", str(ui_port is not None).lower())
        if ui_port is not None:
            conf.set("spark.ui.port", str(ui_port))
        with log_path.open("ab") as log:
            popen: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            if hold_fd is not None:
                popen["pass_fds"] = (hold_fd,)
            self._gateway = launch_gateway(conf, popen)
        self._context = SparkContext(conf=conf, gateway=self._gateway)
        self.spark = SparkSession(self._context)

    @property
    def ui_url(self) -> str | None:
        return self._context.uiWebUrl

    @property
    def jvm_pid(self) -> int:
        return int(self._gateway.proc.pid)

    def stop(self) -> None:
        """End Spark and its JVM, and wait for the JVM."""
        self.spark.stop()
        self._gateway.shutdown()
        # The JVM ends when the pipe to its standard input does.
        self._gateway.proc.stdin.close()
        self._gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
