"""HDFS with a real name node and data node."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from embedded import parent_watchdog
from embedded.jars import jar_paths
from embedded.java import find_java
from tests.e2e.harness import START_TIMEOUT_S, wait_until
from tests.harness.ports import free_port

HOST = "127.0.0.1"
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_GRACE_S = 5
_LIVE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


class Hdfs:
    """Runs until the end of the block. All its files are in `folder`. `uri` is its root."""

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
        watchdog = [sys.executable, "-I", "-S", parent_watchdog.__file__, str(_GRACE_S)]
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
        sparks = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
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
