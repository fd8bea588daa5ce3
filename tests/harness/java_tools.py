"""Kafka's own command-line tools, each in its own JVM."""

import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from cli.processes.child import Child
from embedded.broker import archive_options
from embedded.jars import cache_dir, jar_paths
from embedded.java import find_java

_RUN_TIMEOUT_S = 120
# The tool's default of 5 s is too short for a coordinator on a busy machine.
_ANSWER_TIMEOUT_MS = 60_000
# Most of a run's time is the start of the JVM.
_JVM_OPTIONS = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
_SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_ASSIGNMENTS = "org.apache.kafka.clients.consumer.internals.ConsumerRebalanceListenerInvoker"
_ASSIGNED, _REVOKED = "Adding newly assigned partitions: ", "Revoke previously assigned partitions "

# Logs go to a separate file, so that a tool prints only its output.
_LOG4J2 = f"""\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${{sys:tool.log}}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
logger.assignments.name = {_ASSIGNMENTS}
logger.assignments.level = info
"""


class JavaTools:
    """Runs tools against the cluster at `servers`. `folder` receives one log file for each tool."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers = servers
        self._folder = folder
        self._numbers = count(1)

    def share_groups(self, *arguments: str) -> str:
        """Return the output of `kafka-share-groups`. It reports errors only there, not by its exit code."""
        command = self._java(_SHARE_GROUPS, self._new_log("groups"))
        return _output([*command, "--timeout", str(_ANSWER_TIMEOUT_MS), *arguments])

    @contextmanager
    def console_consumer(self, group_id: str, topic: str, **settings: str) -> Iterator["ConsoleConsumer"]:
        """Run `kafka-console-consumer` until the block ends. `topic` with a leading ^ is a pattern.
        `settings` are consumer settings, with `_` for `.`.
        """
        log_path = self._new_log("consumer")
        arguments = self._java(_CONSUMER, log_path)
        subscribed = "--include" if topic.startswith("^") else "--topic"
        arguments += ["--group", group_id, subscribed, topic, "--from-beginning"]
        for name, value in settings.items():
            arguments += ["--command-property", f"{name.replace('_', '.')}={value}"]
        with closing(ConsoleConsumer(arguments, log_path)) as consumer:
            yield consumer

    @contextmanager
    def console_share_consumer(self, group_id: str, topic: str) -> Iterator["ConsoleConsumer"]:
        """Run `kafka-console-share-consumer`, which accepts each record, until the block ends."""
        log_path = self._new_log("share-consumer")
        arguments = [*self._java(_SHARE_CONSUMER, log_path), "--group", group_id, "--topic", topic]
        with closing(ConsoleConsumer(arguments, log_path)) as consumer:
            yield consumer

    def _new_log(self, name: str) -> Path:
        return self._folder / f"{name}-{next(self._numbers)}.log"

    def _java(self, tool: str, log_path: Path) -> list[str]:
        server = ["--bootstrap-server", self._servers]
        return [*java_options(jar_paths("tools")), *log_options(log_path), tool, *server]


def java_options(jars: Iterable[Path] = ()) -> list[str]:
    """Return the options of a JVM with the broker's jars and these behind them, so that the archive of the
    broker's classes fits it. A jar that the broker has, too, is there once: SLF4J prints five lines if its
    binding is there twice.
    """
    of_broker = list(jar_paths("broker"))
    names = {jar.name for jar in of_broker}
    classpath = [*of_broker, *(jar for jar in jars if jar.name not in names)]
    return [*_JVM_OPTIONS, *archive_options(), *classpath_options(classpath)]


def java_options_of(jars: Iterable[Path]) -> list[str]:
    """Return the options of a JVM with these jars alone, which have another version of Kafka than the
    broker.
    """
    return [*_JVM_OPTIONS, *classpath_options(jars)]


def classpath_options(jars: Iterable[Path]) -> list[str]:
    return ["-cp", os.pathsep.join(map(str, jars))]


def compiled(sources: Iterable[Path], options: Sequence[str]) -> Path:
    """Return a folder with the classes of these Java files, compiled once with these options of the JVM."""
    files = sorted(sources)
    content = "".join([*options, *(file.read_text() for file in files)])
    folder = cache_dir() / "classes" / sha256(content.encode()).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as made:
            target = Path(made) / "classes"
            compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-d", str(target)]
            subprocess.run([str(find_java()), *compiler, *options, *map(str, files)], check=True)
            with suppress(OSError):  # another process was first
                target.rename(folder)
    return folder


def log_options(log_path: Path) -> list[str]:
    """Return the options of a JVM whose log goes to this file. The log's settings are in a file beside it."""
    settings = log_path.with_suffix(".properties")
    settings.write_text(_LOG4J2)
    return [f"-Dlog4j2.configurationFile={settings}", f"-Dtool.log={log_path}"]


def _output(command: list[str]) -> str:
    """Return what a tool prints. Raises CalledProcessError, whose notes have that, too."""
    try:
        return subprocess.run(
            [str(find_java()), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=True,
        ).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.output)
        raise


class ConsoleConsumer:
    """A console consumer of records that are numbers. It commits automatically, and when it is closed."""

    def __init__(self, arguments: list[str], log_path: Path) -> None:
        self._log_path = log_path
        self._child = Child(log_path.stem, arguments, log_path.with_suffix(".out"), program=find_java())
        self._polled = 0

    def poll(self) -> list[int]:
        """Return the records that the consumer printed since the last call."""
        whole_lines = self._child.log_path.read_text().rpartition("\n")[0].splitlines()
        values = [int(line) for line in whole_lines if line.isdigit()]
        fresh, self._polled = values[self._polled :], len(values)
        return fresh

    def partitions(self) -> set[int]:
        """Return the consumer's partitions according to its own log."""
        text = self._log_path.read_text() if self._log_path.exists() else ""
        held: set[int] = set()
        for line in text.rpartition("\n")[0].splitlines():
            if _REVOKED in line:
                held = set()
            elif _ASSIGNED in line:
                named = line.partition(_ASSIGNED)[2].strip("[]").split(", ")
                held = {int(partition.rpartition("-")[2]) for partition in named if partition}
        return held

    def kill(self) -> None:
        """Send SIGKILL. The consumer does not commit and does not leave the group."""
        self._child.kill()

    def close(self) -> None:
        """Stop the consumer as Ctrl-C does, and wait for its exit."""
        self._child.stop()
