"""A real Apache Kafka broker on this machine, for tests, the demo and runs without a cluster."""

import json
import os
import re
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from kafka.errors import KafkaError

from embedded.jars import broker_archive, jar_paths
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
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.errors import MultilineError
from kafka_why.local_files import PRIVATE_UMASK, make_private_folder, warn_if_open

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        # Relative to the data folder, in which the broker runs. The absolute path may have characters that a
        # properties file or Kafka's comma-separated list of folders cannot hold.
        "log.dirs": "log",
        # Topics are created explicitly, with the settings this project checks.
        "auto.create.topics.enable": "false",
        # There is one node.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # A restart after a crash has to wait for the end of the lost broker's session. The default is 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(8 * 1024 * 1024),
        "replica.fetch.max.bytes": str(8 * 1024 * 1024),
        "log.retention.hours": "168",
        # The cleaner's default, 128 MiB for its map of offsets, is a quarter of this broker's heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
)
"""The settings of every embedded broker, besides its addresses."""

# Settings that the embedding decides: the broker's addresses, its data folder, and that it is one node.
_FIXED_NAMES = re.compile(
    r"process\.roles|node\.id|broker\.id|broker\.id\..*|controller\..*|(metadata\.)?log\.dirs?|cluster\.id"
    r"|listeners|advertised\.listeners|early\.start\.listeners|listener\..*"
    r"|inter\.broker\.listener\.name|security\.inter\.broker\.protocol"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WHOLE_NUMBER = re.compile(r"[0-9]+")
# Replication factors, and minimum numbers of replicas. With one broker they can only be 1.
_REPLICATION_NAMES = re.compile(r".*(replication\.factor|min\.insync\.replicas|\.min\.isr)")


class BrokerSettingRefused(ValueError):
    """A setting that the embedded broker does not accept. The message has the reason."""


def check_broker_settings(settings: Mapping[str, str]) -> None:
    """Raise BrokerSettingRefused if a setting does not fit an embedded broker.

    The broker itself refuses unknown settings and invalid values when it starts.
    """
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise BrokerSettingRefused(f"{name!r} is not the name of a broker setting")
        if _FIXED_NAMES.fullmatch(name.lower()):
            raise BrokerSettingRefused(
                f"{name} cannot be set: the embedded broker is one node on loopback with its data in the "
                "data folder; for anything else start a broker and name it with --bootstrap-servers"
            )
        # Ten digits suffice for the comparison, and Python's `int` refuses very long numbers.
        if _REPLICATION_NAMES.fullmatch(name) and _WHOLE_NUMBER.fullmatch(value) and int(value[:10]) > 1:
            raise BrokerSettingRefused(f"{name} can only be 1, because there is one broker, not {value}")
        if not value.isprintable():
            raise BrokerSettingRefused(f"the value of {name} has characters that cannot be printed")


def escaped(value: str) -> str:
    """Escape a value for Java's properties files (java.util.Properties.load): ISO 8859-1 with escapes."""
    # A Java escape is one UTF-16 unit of two bytes, so a character outside the BMP has two escapes.
    utf16 = value.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(utf16[i : i + 2]) for i in range(0, len(utf16), 2)]
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in units)


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a properties file that only its owner may read, because the settings may have passwords."""
    path.touch(mode=0o600)
    path.chmod(0o600)  # `touch` does not change the mode of an existing file
    path.write_text("".join(f"{name}={escaped(value)}\n" for name, value in settings.items()))


START_TIMEOUT_S = 60
STOP_GRACE_S = 30
# The grace period of a JVM that writes an archive of its classes at its end, on a busy machine.
_ARCHIVE_GRACE_S = 300
LOCK_TIMEOUT_S = 15
_PORT_TRIES = 5
_JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
logger.groups.name = org.apache.kafka.coordinator.group
logger.groups.level = info
logger.scala.name = kafka.coordinator.group
logger.scala.level = info
"""


class BrokerFailed(MultilineError):
    """The broker did not start. The message has the reason and the end of its log."""


class _PortTaken(BrokerFailed):
    """Another process listens on one of the broker's ports."""


class Ports(NamedTuple):
    """The two loopback ports of the broker."""

    client: int
    controller: int


def archive_options() -> list[str]:
    """Return the JVM's options for its archive of the broker's classes, if there is one."""
    archive = broker_archive()
    # A JVM ignores an archive of other classes or of another Java.
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


class EmbeddedBroker(ServerProcess):
    """Apache Kafka in KRaft combined mode (broker and controller in one JVM), a child of this process.

    All its files are under ``data_dir``. Its log is ``broker.log``. A later broker in that folder has the
    same data. The broker ends when this process ends, even if this process is killed
    (`embedded.parent_watchdog`). But a fork of this process keeps the broker alive while the fork runs.

    `start` raises `BrokerFailed`, `embedded.jars.JarsUnavailable` or `embedded.java.JavaNotFound`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        # None: the ports of the folder's last start, or free ports if one of these is taken.
        ports: Ports | None = None,
        overrides: Mapping[str, str] = MappingProxyType({}),  # broker settings by Kafka's names
        java_options: Sequence[str] = (),  # options of the JVM, which override `_JVM_OPTIONS`
        is_long_running: bool = False,  # Java's default compilers, which make the start slower
        # If `overrides` secure the listeners: the settings of a client that may log in.
        client_properties: Mapping[str, str] = MappingProxyType({}),
        # A new folder is formatted with this id, which brokers of one cluster share. None: a random id.
        cluster_id: str | None = None,
        archive_at_exit: Path | None = None,  # where the JVM writes an archive of its classes when it exits
        classpath: Sequence[Path] | None = None,  # the jars of another version of Kafka
    ) -> None:
        self.data_dir = data_dir.absolute()
        super().__init__(self.data_dir, self.data_dir / "broker.log")
        self._ports_file = self.data_dir / "ports.json"
        self.ports = ports
        self._overrides = dict(overrides)
        self._java_options = tuple(java_options)
        self._compiler_options = () if is_long_running else (QUICK_COMPILER,)
        self._client_properties = dict(client_properties)
        self._cluster_id = cluster_id or new_cluster_id()
        self._archive_at_exit = archive_at_exit
        self._classpath = classpath

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients, known after the first `start`, or at once if ports were given."""
        if self.ports is None:
            raise RuntimeError("the broker has no ports before its first start")
        return f"{HOST}:{self.ports.client}"

    @property
    def client_config(self) -> ClientConfig:
        """The settings of a client, known as soon as `bootstrap_servers` is."""
        return ClientConfig(self.bootstrap_servers, self._client_properties)

    def start(self) -> None:
        """Start the broker and return when clients can use it: after about 3 s, 5 s on a new data folder."""
        if self.is_launched:
            raise RuntimeError("the broker is running")
        self._prepare_data_dir()
        with self._locked_data_dir() as lock:
            if self.ports is not None:
                candidates = [self.ports]
            else:
                candidates = [*self._stored_ports(), *(free_ports() for _ in range(_PORT_TRIES))]
            for ports in candidates[:-1]:
                with suppress(_PortTaken):  # a port was taken since the search, so try the next ports
                    return self._start_on(ports, lock)
            self._start_on(candidates[-1], lock)

    def _prepare_data_dir(self) -> None:
        """Create the folder if it is missing, and its files for the log. Raise BrokerFailed."""
        try:
            make_private_folder(self.data_dir)
            warn_if_open(self.data_dir)
            self.log_path.touch()
            (self.data_dir / "log4j2.properties").write_text(_LOG4J2)
        except OSError as error:
            raise BrokerFailed(f"The broker cannot use the folder {self.data_dir}: {error}") from error

    @contextmanager
    def _locked_data_dir(self) -> Iterator[BinaryIO]:
        """Lock the folder. The parent watchdog inherits the lock and releases it only when the JVM has ended.

        Kafka locks its folder too, but only after it has opened the metadata log. By then a second controller
        has corrupted that log.
        """
        try:
            with locked_folder(self.data_dir, LOCK_TIMEOUT_S) as lock:
                yield lock
        except BlockingIOError:
            raise BrokerFailed(f"The broker cannot start: another one uses {self.data_dir}") from None

    def _stored_ports(self) -> list[Ports]:
        """Return the ports of the folder's last start, or no ports if they are unknown."""
        try:
            return [Ports(**json.loads(self._ports_file.read_text()))]
        except (OSError, ValueError, TypeError):  # a new folder, or a truncated file
            return []

    def _start_on(self, ports: Ports, lock: BinaryIO) -> None:
        """Start the broker on these ports, and store them. Raise _PortTaken if one of them is taken."""
        for port in ports:
            if not is_free(port):
                raise _PortTaken(f"The broker cannot start: port {port} on {HOST} is taken")
        self.mark_log()
        self._write_settings(ports)
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format()
        try:
            self._launch(lock)
            self._wait_until_reachable(ClientConfig(f"{HOST}:{ports.client}", self._client_properties))
        except BaseException:  # also KeyboardInterrupt
            self.kill()
            raise
        self.ports = ports
        self._ports_file.write_text(json.dumps(ports._asdict()))

    def _write_settings(self, ports: Ports) -> None:
        """Write the broker's properties file."""
        client, controller = (f"{HOST}:{port}" for port in ports)
        settings = {
            **SETTINGS,
            "listeners": f"CLIENT://{client},CONTROLLER://{controller}",
            "advertised.listeners": f"CLIENT://{client}",
            "controller.quorum.voters": f"{SETTINGS['node.id']}@{controller}",
            **self._overrides,
        }
        write_settings(self.data_dir / "server.properties", settings)

    def _java_command(
        self, main_class: str, *arguments: str, class_archive: Sequence[str], compiler: Sequence[str]
    ) -> list[str]:
        """Return the command that runs a class of Kafka. `class_archive` and `compiler` are JVM options."""
        jars = jar_paths("broker") if self._classpath is None else self._classpath
        if self._classpath is not None:
            class_archive = ()  # the archive is of the classes of the default jars
        options = (*class_archive, *_JVM_OPTIONS, *compiler, *self._java_options)
        classpath = os.pathsep.join(map(str, jars))
        return [str(find_java()), *options, "-cp", classpath, main_class, *arguments]

    def _format(self) -> None:
        """Format the log folder with its ids and this Kafka's features, as kafka-storage.sh does."""
        command = self._java_command(
            "kafka.tools.StorageTool",
            *("format", "--cluster-id", self._cluster_id, "--config", "server.properties"),
            class_archive=archive_options(),
            compiler=(QUICK_COMPILER,),
        )
        with self.log_path.open("ab") as log:
            finished = subprocess.run(
                command, cwd=self.data_dir, stdout=log, stderr=log, check=False, umask=PRIVATE_UMASK
            )
        if finished.returncode != 0:
            raise self._failure("formatting its log folder failed")

    def _launch(self, lock: BinaryIO) -> None:
        """Start the broker's JVM, which inherits the lock of the folder. Raise BrokerFailed."""
        class_archive, grace_s = archive_options(), STOP_GRACE_S
        if self._archive_at_exit is not None:
            class_archive, grace_s = [f"-XX:ArchiveClassesAtExit={self._archive_at_exit}"], _ARCHIVE_GRACE_S
        command = self._java_command(
            "kafka.Kafka",
            "server.properties",
            class_archive=class_archive,
            compiler=self._compiler_options,
        )
        if not self.spawn(command, grace_s=grace_s, pass_fds=[lock.fileno()]):
            raise self._failure("its JVM could not be started")

    def _wait_until_reachable(self, client_config: ClientConfig) -> None:
        """Wait until the broker serves clients. Raise BrokerFailed if it ends, or does not serve in time."""
        deadline, pause_s = time.monotonic() + START_TIMEOUT_S, 0.02
        while not _is_serving(client_config):
            if time.monotonic() > deadline:
                raise self._failure(f"no client could reach it within {START_TIMEOUT_S} s")
            if (code := self.wait(pause_s)) is not None:
                raise self._failure(f"it ended with exit code {code}")
            pause_s = min(pause_s * 1.5, 0.25)

    def _failure(self, reason: str) -> BrokerFailed:
        """Return the error of a failed start, with the end of the log: _PortTaken if the log shows that."""
        text = self.log_text()
        error_type = _PortTaken if "Address already in use" in text else BrokerFailed
        return error_type(f"The broker did not start: {reason}. The end of {self.log_path}:\n{tail(text)}")


def new_cluster_id() -> str:
    """Return a random id of a Kafka cluster."""
    # An id that begins with "-" would be an option of Kafka's commands.
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


def free_ports() -> Ports:
    """Return two ports on which no process listens now. Another process may take them before the broker
    does.
    """
    free = shuffled_free_ports()
    return Ports(client=next(free), controller=next(free))


def _is_serving(client_config: ClientConfig) -> bool:
    """Return True if the broker serves clients: it answers, and its controller has unfenced it."""
    host, port = client_config.bootstrap_servers.split(":")
    try:
        # A connection that fails is far cheaper than a Kafka client that fails.
        socket.create_connection((host, int(port)), timeout=1).close()
        admin = kafka_clients.admin(client_config)
    except (OSError, KafkaError):
        return False
    try:
        # Kafka 3.9 omits fenced brokers, and has no `is_fenced` for the brokers that it lists.
        return any(not broker.get("is_fenced") for broker in admin.describe_cluster()["brokers"])
    except KafkaError:
        return False
    finally:
        admin.close()
