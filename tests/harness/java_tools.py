"""Java programs of tests, each in its own JVM: Kafka's command-line tools, and others that take commands."""

import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Self

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
        topic_option = "--include" if topic.startswith("^") else "--topic"
        arguments += ["--group", group_id, topic_option, topic, "--from-beginning"]
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
    """Return the options of a JVM with the broker's jars and these after them, so that it can use the archive
    of the broker's classes. Jars that the broker has, too, are not repeated, because SLF4J prints a warning
    then.
    """
    of_broker = list(jar_paths("broker"))
    names = {jar.name for jar in of_broker}
    classpath = [*of_broker, *(jar for jar in jars if jar.name not in names)]
    return [*_JVM_OPTIONS, *archive_options(), *classpath_options(classpath)]


def java_options_of(jars: Iterable[Path]) -> list[str]:
    """Return the options of a JVM with these jars alone, of another version of Kafka than the broker's."""
    return [*_JVM_OPTIONS, *classpath_options(jars)]


def classpath_options(jars: Iterable[Path]) -> list[str]:
    return ["-cp", os.pathsep.join(map(str, jars))]


def compiled(sources: Iterable[Path], options: Sequence[str]) -> Path:
    """Return a folder with the classes of these Java files. They are compiled once, with these options."""
    files = sorted(sources)
    content = "".join([*options, *(file.read_text() for file in files)])
    folder = cache_dir() / "classes" / sha256(content.encode()).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as building:
            target = Path(building) / "classes"
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
    """Return the output of a tool. Raises CalledProcessError with the output as a note."""
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
        self._polled_count = 0

    def poll(self) -> list[int]:
        """Return the records that the consumer printed since the last call."""
        whole_lines = self._child.log_path.read_text().rpartition("\n")[0].splitlines()
        values = [int(line) for line in whole_lines if line.isdigit()]
        fresh, self._polled_count = values[self._polled_count :], len(values)
        return fresh

    def partitions(self) -> set[int]:
        """Return the consumer's partitions according to its own log."""
        text = self._log_path.read_text() if self._log_path.exists() else ""
        partitions: set[int] = set()
        for line in text.rpartition("\n")[0].splitlines():
            if _REVOKED in line:
                partitions = set()
            elif _ASSIGNED in line:
                names = line.partition(_ASSIGNED)[2].strip("[]").split(", ")
                partitions = {int(name.rpartition("-")[2]) for name in names if name}
        return partitions

    def kill(self) -> None:
        """Send SIGKILL. The consumer does not commit and does not leave the group."""
        self._child.kill()

    def close(self) -> None:
        """Stop the consumer as Ctrl-C does, and wait for its exit."""
        self._child.stop()


_END_TIMEOUT_S = 60.0


class JavaProgram:
    """A Java program in a process of its own. It ends when its standard input is closed."""

    def __init__(
        self, command: Sequence[str], errors: IO[str] | None = None, folder: Path | None = None
    ) -> None:
        self._jvm = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            text=True,
            bufsize=1,
        )
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._commands, self._output = self._jvm.stdin, self._jvm.stdout

    def command(self, line: str) -> None:
        """Send a command line to the program."""
        self._commands.write(f"{line}\n")

    def answer(self, line: str) -> str:
        """Send a command line, and return the line that the program prints, or "" if it has ended."""
        self.command(line)
        return self._output.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        """Send a signal to the program."""
        self._jvm.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL: its clients do not leave their groups."""
        self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End the program. Clients that are not closed do not leave their groups."""
        with suppress(BrokenPipeError):  # the program has ended, and a command is still in the buffer
            self._commands.close()
        self._wait()
        self._output.close()

    def _wait(self) -> None:
        try:
            self._jvm.wait(_END_TIMEOUT_S)
        finally:
            self._jvm.kill()
            self._jvm.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReportingProgram(JavaProgram, ABC):
    """A Java program whose output a thread handles line by line, from the end of `__init__` on."""

    def __init__(
        self, command: Sequence[str], errors: IO[str] | None = None, folder: Path | None = None
    ) -> None:
        super().__init__(command, errors, folder)
        self._reader = threading.Thread(target=self._read, name=type(self).__name__, daemon=True)
        self._reader.start()

    @abstractmethod
    def handle_line(self, line: str) -> None:
        """Handle a line of output."""

    @abstractmethod
    def on_end(self) -> None:
        """Handle the end of the output."""

    def _read(self) -> None:
        for line in self._output:
            self.handle_line(line.rstrip("\n"))
        self.on_end()

    def _wait(self) -> None:
        super()._wait()
        self._reader.join()
