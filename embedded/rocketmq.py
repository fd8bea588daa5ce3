"""A real Apache RocketMQ on this machine, a name server and brokers, for tests, the demo and runs without a
cluster.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from embedded.broker import write_settings
from embedded.jars import class_path
from embedded.java import (
    HOST,
    QUICK_COMPILER,
    ServerProcess,
    find_java,
    is_free,
    locked_folder,
    shuffled_free_ports,
    tail,
)
from kafka_why.errors import MultilineError
from kafka_why.lifetimes import Startable
from kafka_why.local_files import make_private_folder, warn_if_open

START_TIMEOUT_S = 120.0
# A broker stops its services one by one, which takes up to 25 s.
STOP_GRACE_S = 40.0
LOCK_TIMEOUT_S = STOP_GRACE_S
_POLL_S = 0.05
_NAME_SERVER = "name-server"
_LOGBACK = """\
<configuration>
  <statusListener class="ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger{0}: %m%n%ex</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:MaxDirectMemorySize=256m",
    "-Drocketmq.home.dir=.",
    "-Drmq.logback.configurationFile=logback.xml",
    # Otherwise each start generates a certificate, whose RSA key takes seconds.
    "-Dtls.server.mode=disabled",
    # The memory of a mapped file is released by classes that Java does not export.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
_BROKER_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "enablePropertyFilter": "true",
        # Without the timer, consumers that pop get no message.
        "timerWheelEnable": "true",
        "diskMaxUsedSpaceRatio": "98",
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": "60000",
        # A thread of the broker spins until this time after its start. The default is 10 s.
        "transactionMetricFlushInterval": "1000",
        # A flush compares 39 MB, which took a sixth of a core at the default of 1 s.
        "timerFlushIntervalMs": "10000",
    }
)


class RocketMqFailed(MultilineError):
    """RocketMQ did not start. The message has the reason and the end of the log."""


@dataclass(frozen=True)
class BrokerNode:
    """A broker of the cluster. Of brokers with the same name, the one with `id` 0 is the master.

    `overrides` are settings of this broker by RocketMQ's names.
    """

    name: str = "broker-a"
    id: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}/{self.id}"


class RocketMqServer(ServerProcess):
    """A name server or a broker, a JVM in its own folder. Its log is ``server.log``."""

    def __init__(
        self, name: str, folder: Path, main_class: str, settings: Mapping[str, str], options: Sequence[str]
    ) -> None:
        super().__init__(folder, folder / "server.log")
        self.name = name
        self.address = f"{HOST}:{settings['listenPort']}"
        self.inherited: Sequence[int] = ()
        """Open files that each process of the server inherits."""
        self._main_class = main_class
        self._settings = settings
        self._options = options

    def start(self) -> None:
        """Launch the server, and wait until it serves. Raises RocketMqFailed."""
        self.launch()
        self.wait_until_up()

    def launch(self) -> None:
        """Start the server's process. Raises RocketMqFailed."""
        if self.is_launched:
            raise RuntimeError(f"{self.name} is running")
        make_private_folder(self._folder)
        (self._folder / "logback.xml").write_text(_LOGBACK)
        write_settings(self._folder / "server.conf", self._settings)
        self.log_path.touch()
        self.mark_log()
        classpath = class_path("rocketmq")
        options = (*_JVM_OPTIONS, f"-Duser.home={self._folder}", *self._options)
        command = [str(find_java()), *options, "-cp", classpath, self._main_class, "-c", "server.conf"]
        if not self.spawn(command, grace_s=STOP_GRACE_S, pass_fds=self.inherited):
            self.kill()
            raise self._failure("its JVM could not be started")

    def wait_until_up(self) -> None:
        """Wait until a launched server serves. If it does not, end it and raise RocketMqFailed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while "boot success" not in self.log_text():
                if (code := self.wait(_POLL_S)) is not None:
                    raise self._failure(f"it ended with exit code {code}")
                if time.monotonic() > deadline:
                    raise self._failure(f"it was not up within {START_TIMEOUT_S:.0f} s")
        except BaseException:  # also KeyboardInterrupt
            self.kill()
            raise

    def _failure(self, reason: str) -> RocketMqFailed:
        """Return the error of a failed start, with the end of the log."""
        log_end = tail(self.log_text())
        return RocketMqFailed(f"{self.name} did not start: {reason}. The end of {self.log_path}:\n{log_end}")


class EmbeddedRocketMq(Startable):
    """A name server and brokers, children of this process on loopback.

    All files are under ``data_dir``. A later cluster in that folder has the same data, and the same ports
    unless another program has taken one of them. The cluster ends when this process ends, even if this
    process is killed. RocketMQ binds the port for slaves, the next one above a broker's port, on all
    interfaces.

    `start` raises `RocketMqFailed`, `embedded.jars.JarsUnavailable` or `embedded.java.JavaNotFound`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        nodes: Sequence[BrokerNode] = (BrokerNode(),),
        overrides: Mapping[str, str] = MappingProxyType({}),  # settings of each broker by RocketMQ's names
        java_options: Sequence[str] = (),  # options of each JVM, which override `_JVM_OPTIONS`
        is_long_running: bool = False,  # Java's default compilers, which make the start slower
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.brokers: dict[str, RocketMqServer] = {}
        """The brokers by ``name/id``, after the first `start`."""
        self._nodes = tuple(nodes)
        self._overrides = dict(overrides)
        self._options = (*(() if is_long_running else (QUICK_COMPILER,)), *java_options)
        self._name_server: RocketMqServer | None = None
        self._lock = ExitStack()  # holds the lock of the folder while the servers run

    @property
    def name_server(self) -> RocketMqServer:
        """The name server, after the first `start`. Its `address` is a client's ``namesrvAddr``."""
        if self._name_server is None:
            raise RuntimeError("RocketMQ has no ports before its first start")
        return self._name_server

    @property
    def servers(self) -> list[RocketMqServer]:
        """The name server and the brokers, after the first `start`."""
        return [self.name_server, *self.brokers.values()]

    def start(self) -> None:
        """Start all servers, and return when the name server has the routes of all brokers."""
        class_path("rocketmq")  # downloads missing jars before anything starts
        try:
            make_private_folder(self.data_dir)
            warn_if_open(self.data_dir)
            with ExitStack() as stack:
                lock = stack.enter_context(locked_folder(self.data_dir, LOCK_TIMEOUT_S))
                if self._name_server is None:
                    self._create_servers(self._choose_ports())
                for server in self.servers:
                    server.inherited = (lock.fileno(),)
                self._start_all()
                self._lock = stack.pop_all()
        except BlockingIOError:
            raise RocketMqFailed(f"RocketMQ cannot start: another one uses {self.data_dir}") from None
        except OSError as error:
            raise RocketMqFailed(f"RocketMQ cannot use the folder {self.data_dir}: {error}") from error

    def stop(self) -> None:
        """Shut the brokers down, then the name server, and wait for their end."""
        if self._name_server is not None:
            for broker in self.brokers.values():
                broker.request_stop()
            for server in reversed(self.servers):
                server.stop()
            self._lock.close()

    def kill(self) -> None:
        """End all servers with SIGKILL, and wait for their end."""
        if self._name_server is not None:
            for server in self.servers:
                server.kill()
            self._lock.close()

    def _choose_ports(self) -> dict[str, int]:
        """Return a port for each server: its previous one if that is free, else a new one."""
        ports_file = self.data_dir / "ports.json"
        stored: dict[str, int] = {}  # by server, its port at the last start
        with suppress(OSError, ValueError):  # a new folder, or a truncated file
            stored = json.loads(ports_file.read_text())
        candidates = shuffled_free_ports()
        chosen: dict[str, int] = {}
        taken: set[int] = set()
        for name in (_NAME_SERVER, *map(str, self._nodes)):
            for port in chain([stored[name]] if name in stored else [], candidates):
                # A broker also listens 2 below its port (VIP channel) and 1 above (slaves).
                needed = {port} if name == _NAME_SERVER else {port - 2, port, port + 1}
                if needed.isdisjoint(taken) and all(map(is_free, needed)):
                    chosen[name] = port
                    taken |= needed
                    break
        ports_file.write_text(json.dumps(stored | chosen))
        return chosen

    def _create_servers(self, ports: Mapping[str, int]) -> None:
        """Create the name server and the brokers, which are not started yet. `ports` are by server name."""
        name_server_settings = {"listenPort": str(ports[_NAME_SERVER]), "bindAddress": HOST}
        self._name_server = RocketMqServer(
            _NAME_SERVER,
            self.data_dir / _NAME_SERVER,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            name_server_settings,
            ("-Xmx128m", *self._options),
        )
        for node in self._nodes:
            folder = self.data_dir / f"{node.name}-{node.id}"
            settings = {
                **_BROKER_SETTINGS,
                "brokerName": node.name,
                "brokerId": str(node.id),
                "brokerRole": "SLAVE" if node.id else "ASYNC_MASTER",
                "bindAddress": HOST,
                "listenPort": str(ports[str(node)]),
                "namesrvAddr": self._name_server.address,
                "storePathRootDir": str(folder / "store"),
                **self._overrides,
                **node.overrides,
            }
            main_class = "org.apache.rocketmq.broker.BrokerStartup"
            options = ("-Xmx256m", *self._options)
            self.brokers[str(node)] = RocketMqServer(str(node), folder, main_class, settings, options)

    def _start_all(self) -> None:
        """Start the name server, then the brokers together. If one fails, kill all of them."""
        try:
            # A broker registers when it starts. If the name server is not up then, it retries after 10 s.
            for servers in ([self.name_server], self.brokers.values()):
                for server in servers:
                    server.launch()
                for server in servers:
                    server.wait_until_up()
        except BaseException:  # also KeyboardInterrupt
            self.kill()
            raise
