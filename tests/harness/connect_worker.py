"""Workers of Kafka Connect in distributed mode, with the connectors that read and write files."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cli.processes.child import Child
from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import java_options_of
from tests.harness.ports import free_port

START_TIMEOUT_S = 180.0
FILE_STREAM = "org.apache.kafka.connect.file.FileStream"
STRING = "org.apache.kafka.connect.storage.StringConverter"
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""


class Worker:
    """A Connect worker, reached by its REST interface."""

    def __init__(
        self,
        group_id: str,
        servers: str,
        folder: Path,
        own_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = free_port()
        folder.mkdir()
        settings = {
            "bootstrap.servers": servers,
            "group.id": group_id,
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": STRING,
            "value.converter": STRING,
            "offset.flush.interval.ms": "1000",
            "session.timeout.ms": "10000",
            "heartbeat.interval.ms": "1000",
            # The time for a lost worker to come back before its tasks move. The default is 5 min.
            "scheduled.rebalance.max.delay.ms": "1000",
        }
        for what in ("config", "offset", "status"):
            settings[f"{what}.storage.topic"] = f"{group_id}-{what}"
            settings[f"{what}.storage.replication.factor"] = "1"
        settings |= {"offset.storage.partitions": "1", "status.storage.partitions": "1"}
        settings |= own_settings
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "log4j2.properties").write_text(_LOG4J2)
        options = [*java_options_of(jar_paths("connect")), "-Xmx256m"]
        log_settings = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        arguments = [*options, log_settings, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
        self.process = Child(folder.name, arguments, folder / "worker.log", program=find_java())

    def ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """Return the answer of the REST interface. Raises URLError while the worker cannot answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(dict(body)).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


def is_answered(ask: Callable[[], Any]) -> Callable[[], bool]:
    """Return a check that a worker gives an answer that is true. An error counts as none: a rebalance goes
    on.
    """

    def is_so() -> bool:
        try:
            return bool(ask())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    return is_so
