"""A standalone Spark cluster on this machine, a master and workers as real processes, and HDFS beside it.

Executors run their Python with the tests' environment. All listen on loopback only.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from embedded import parent_watchdog
from embedded.jars import jar_paths
from embedded.java import find_java
from tests.e2e.harness import START_TIMEOUT_S, child_pids, command_of, running, wait_until
from tests.harness.ports import free_port

HOST = "127.0.0.1"
_SPARK_HOME = Path(pyspark.__file__).parent
_GRACE_S = 0.1
# Small and quick to start. Source: docs/configuration.html of Spark, "Environment Variables".
_DAEMON_MEMORY = "192m"
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTOR_SETTINGS = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": _QUICK_JAVA}


class SparkCluster:
    """A master and workers with one core each, under `folder`. They end with this process."""

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
        """Start all processes, and return when the master listens. Workers may register later."""
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
        """End all processes, and wait for the end of the executors, which end after their workers."""
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


_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_HDFS_GRACE_S = 5
_LIVE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


class Hdfs:
    """HDFS that runs until the end of the block. All its files are in `folder`. `uri` is its root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name_port, self._web_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def uri(self) -> str:
        return f"hdfs://{HOST}:{self._name_port}"

    def __enter__(self) -> Self:
        folder = self._folder
        (folder / "conf").mkdir(parents=True)
        _write_settings(folder / "conf" / "core-site.xml", {"fs.defaultFS": self.uri})
        _write_settings(
            folder / "conf" / "hdfs-site.xml",
            {
                "dfs.namenode.name.dir": (folder / "name").as_uri(),
                "dfs.datanode.data.dir": (folder / "data").as_uri(),
                "dfs.namenode.http-address": f"{HOST}:{self._web_port}",
                "dfs.datanode.address": f"{HOST}:0",
                "dfs.datanode.http.address": f"{HOST}:0",
                "dfs.datanode.ipc.address": f"{HOST}:0",
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
            },
        )
        subprocess.run(
            self._java(_NAME_NODE, "-format", "-nonInteractive"),
            check=True,
            capture_output=True,
            timeout=START_TIMEOUT_S,
        )
        self._processes = [self._start(_NAME_NODE), self._start(_DATA_NODE)]
        try:
            wait_until(self._has_data_node, "a data node of HDFS", START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, main: str) -> subprocess.Popen[bytes]:
        watchdog = [sys.executable, "-I", "-S", parent_watchdog.__file__, str(_HDFS_GRACE_S)]
        with (self._folder / f"{main.rpartition('.')[2]}.log").open("wb") as log:
            return subprocess.Popen(
                [*watchdog, *self._java(main)], stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def _stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()

    def _java(self, main: str, *arguments: str) -> list[str]:
        sparks = sorted((_SPARK_HOME / "jars").glob("*.jar"))
        classpath = ":".join(map(str, [self._folder / "conf", *jar_paths("hdfs"), *sparks]))
        return [str(find_java()), *_JVM_OPTIONS, "-cp", classpath, main, *arguments]

    def _has_data_node(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}{_LIVE}", timeout=5) as answer:
                beans = json.load(answer)["beans"]  # none while the name node starts
                return any(bean["NumLiveDataNodes"] for bean in beans)
        except OSError:
            return False


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{rows}</configuration>")
