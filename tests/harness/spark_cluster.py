"""A standalone Spark cluster on this machine: a master and workers as real processes of the pip package.

Executors run their Python with the tests' environment. All listen on loopback only.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from embedded import parent_watchdog
from embedded.java import find_java
from tests.e2e.harness import child_pids, command_of, running, wait_until
from tests.harness.ports import free_port

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
_SPARK_HOME = Path(pyspark.__file__).parent
_GRACE_S = 0.1
# Small and quick to start. Source: docs/configuration.html of Spark, "Environment Variables".
_DAEMON_MEMORY = "192m"
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR_SETTINGS = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": _QUICK_JAVA}


class SparkCluster:
    """A master and so many workers of one core each, under `folder`. They end with this process."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []
        self._worker_count = workers
        self.worker_pids: list[int] = []

    @property
    def master(self) -> str:
        """The URL for `--master`."""
        return f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        """Start all, and return when the master listens. Workers come when they are up."""
        self._folder.mkdir(parents=True, exist_ok=True)
        address = ("--host", HOST, "--webui-port", "0")
        self._run("master", "master.Master", *address, "--port", str(self._port))
        wait_until(self._listens, f"a master at {self.master}", START_TIMEOUT_S)
        for _ in range(self._worker_count):
            self.start_worker()

    def start_worker(self) -> None:
        number = len(self.worker_pids)
        address = ("--host", HOST, "--webui-port", "0")
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}"))
        self.worker_pids.append(self._run(f"worker-{number}", "worker.Worker", *address, *size, self.master))

    def executors(self, worker: int) -> list[int]:
        """Return the process ids of the executors of a worker."""
        children = child_pids(self.worker_pids[worker])
        return [pid for pid in children if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def stop(self) -> None:
        """End all processes, and wait until executors have ended, too: they end when their worker is gone."""
        executors = [pid for worker in range(len(self.worker_pids)) for pid in self.executors(worker)]
        for process in self._started:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._started:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        wait_until(lambda: not running(executors), "the end of the executors", START_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, name: str, main_class: str, *arguments: str) -> int:
        """Start a daemon of Spark. Return the process id of its JVM."""
        environment = os.environ | {
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_PUBLIC_DNS": HOST,
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JAVA,
        }
        spark_class = _SPARK_HOME / "bin" / "spark-class"
        watchdog = (sys.executable, "-I", "-S", str(parent_watchdog.__file__), str(_GRACE_S))
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*watchdog, str(spark_class), f"org.apache.spark.deploy.{main_class}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def _listens(self) -> bool:
        assert self._started[0].poll() is None, (self._folder / "master.log").read_text()[-2_000:]
        try:
            socket.create_connection((HOST, self._port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
            return False
        return True
