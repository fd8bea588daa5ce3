"""A Java that Spark and Kafka can run on, jars downloaded by Apache Ivy, and servers as child processes."""

import fcntl
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import BinaryIO, NamedTuple

from embedded import parent_watchdog
from kafka_why.errors import MultilineError
from kafka_why.lifetimes import Startable
from kafka_why.local_files import PRIVATE_UMASK

MIN_JAVA_VERSION = 17
# Spark adds this module to the command of every JVM it starts. Runtimes reduced by jlink often lack it.
NEEDED_MODULE = "jdk.incubator.vector"
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""The JVM option that disables the optimizing compiler, which needs half of the processor time of a start."""
_PROBE_TIMEOUT_S = 60


class JavaNotFound(MultilineError):
    """No suitable Java was found. The message lists the searched places, the fault of each Java, and what to
    do.
    """


def find_java() -> Path:
    """Return the ``java`` executable of the first suitable Java: in ``$JAVA_HOME``, else on ``$PATH``.

    A Java is suitable if it is Java 17 or newer and has the module that Spark loads. It is the real
    executable, not a version manager's shim, because Spark's ``JAVA_HOME`` is the folder two levels above it.
    Raises `JavaNotFound`.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache
def _find_java(java_home: str | None, path: str | None) -> Path:
    faults: list[str] = []
    for source, java in _candidates(java_home, path):
        if (probe := _probe(java)) is None:
            faults.append(f"{source}: {java} does not run")
            continue
        version, home = probe
        if version < MIN_JAVA_VERSION:
            faults.append(f"{source}: {java} is Java {version}")
        elif _run(java, "--add-modules", NEEDED_MODULE, "-version") is None:
            faults.append(f"{source}: {java} lacks the module {NEEDED_MODULE}, which Spark loads")
        else:
            return home / "bin" / "java"
    looked_at = "\n  ".join(["Looked at JAVA_HOME and PATH:", *(faults or ["neither has a java"])])
    raise JavaNotFound(
        f"Java {MIN_JAVA_VERSION} or newer is needed. {looked_at}\n"
        "Install a JDK or a full JRE, and set JAVA_HOME to its folder or put its java on PATH."
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    """Yield each Java to try, after the name of the variable that names it."""
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)


def _probe(java: Path) -> tuple[int, Path] | None:
    """Return a Java's version and home, or None if it does not run or does not answer like a Java."""
    report = _run(java, "-XshowSettings:properties", "-version")
    # The lines are such as "    java.home = /usr/lib/jvm/java-17".
    properties = dict(re.findall(r"^ +(java\.\S+) = (.+)$", report or "", re.MULTILINE))
    # "1.8" before Java 9, "17" since.
    version = re.match(r"(?:1\.)?(?P<major>\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        return None
    return int(version["major"]), Path(properties["java.home"])


def _run(java: Path, *options: str) -> str | None:
    """Return the standard error output of a Java, or None if it fails."""
    command = [str(java), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr


# The download of jars from Maven repositories by Apache Ivy, which the pyspark wheel ships.
# Ivy runs as a program (``java -jar``), not through Spark, because ``spark.jars.packages`` would resolve at
# each start and would put the jars on Python's own path too.


# Ivy runs for only a second or two, so the optimizing compiler would cost more than it saves.
_JVM_OPTIONS = (QUICK_COMPILER, "-XX:+UseSerialGC")


class Artifact(NamedTuple):
    """A Maven coordinate."""

    group: str
    name: str
    version: str


class IvyFailed(RuntimeError):
    """Ivy could not get every jar. The arguments are a reason for each coordinate or file, or its output."""


def retrieve(
    artifacts: Iterable[Artifact],
    into: Path,
    *,
    home: Path,
    transitive: bool,
    on_line: Callable[[str], None],
) -> None:
    """Put the jars of these artifacts into a folder, named ``artifact-version.jar``.

    If an artifact has several jars, they are ``artifact-version-classifier.jar``. ``home`` keeps Ivy's own
    files (its settings and its cache of downloads). ``on_line`` is called with each line that Ivy prints.
    Raises `IvyFailed` or `embedded.java.JavaNotFound`.
    """
    home.mkdir(parents=True, exist_ok=True)
    module, settings = home / "ivy.xml", home / "ivysettings.xml"
    module.write_text(_module_xml(artifacts, transitive=transitive), encoding="utf-8")
    settings.write_text(_settings_xml(home / "cache"), encoding="utf-8")
    command = [
        *(str(find_java()), *_JVM_OPTIONS, "-jar", str(_ivy_jar())),
        *("-settings", str(settings)),
        *("-ivy", str(module)),
        *("-types", "jar", "bundle"),
        *("-confs", "jars"),
        *("-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line)
            on_line(line.strip())
    if ivy.returncode != 0:
        output = "".join(lines)
        reasons = [f"{jar}: {reason}" for jar, reason in dict(_failures(output)).items()]
        raise IvyFailed(*(reasons or [output]))


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None, "pyspark is a dependency of this project"
    return next((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))


def _module_xml(artifacts: Iterable[Artifact], *, transitive: bool) -> str:
    # Ivy calls the artifact alone "master", and the artifact with all its dependencies "default".
    conf = f"jars->{'default' if transitive else 'master'}"
    return _MODULE.format(
        "\n".join(
            f'<dependency org="{escape(a.group)}" name="{escape(a.name)}" rev="{escape(a.version)}" '
            f'conf="{escape(conf)}"/>'
            for a in artifacts
        )
    )


_MODULE = """\
<ivy-module version="2.0">
  <info organisation="spark-group-coordinator" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""
# Our own SHA-256 list replaces the repository's checksums. Look-ups of sources and documentation would double
# the number of requests.
_SETTINGS = """\
<ivysettings>
  <property name="ivy.checksums" value=""/>
  <property name="ivy.maven.lookup.sources" value="false"/>
  <property name="ivy.maven.lookup.javadoc" value="false"/>
  <timeout-constraints>
    <timeout-constraint name="net" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <settings defaultResolver="maven"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" useMavenMetadata="false" timeoutConstraint="net"{root}/>
  </resolvers>
</ivysettings>
"""


def _settings_xml(cache: Path) -> str:
    mirror = maven_mirror()
    root = f' root="{escape(mirror)}"' if mirror else ""
    return _SETTINGS.format(cache=escape(str(cache)), root=root)


def maven_mirror() -> str | None:
    """Return the repository configured on this machine instead of Maven Central, or None if there is none.

    It is ``$DEFAULT_ARTIFACT_REPOSITORY`` (the variable Spark reads for the same purpose), else the mirror of
    ``central`` in ``~/.m2/settings.xml``.
    """
    if repository := os.environ.get("DEFAULT_ARTIFACT_REPOSITORY"):
        return repository
    try:
        settings = ET.parse(Path.home() / ".m2" / "settings.xml")  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError):
        return None
    for mirror in settings.iterfind(".//{*}mirror"):
        mirrored_ids = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        if {"*", "external:*", "central"} & set(mirrored_ids) and "!central" not in mirrored_ids:
            return mirror.findtext("{*}url")
    return None


def _failures(output: str) -> Iterator[tuple[str, str]]:
    """Yield the failures in Ivy's report: (coordinate or file, reason)."""
    server_errors = re.findall(r"Server access error at url \S*?/([^/ ]+) \((.+)\)$", output, re.MULTILINE)
    # An artifact that was not resolved, as ":: group#name;version: reason".
    for group, name, version, reason in re.findall(r":: (\S+)#(\S+);(\S+): (.+)$", output, re.MULTILINE):
        details = [detail for file, detail in server_errors if file.startswith(f"{name}-{version}.")]
        yield f"{group}:{name}:{version}", details[0] if details else reason
    # A jar that was not downloaded, as ":: group#name;version!name.jar".
    for group, name, version in re.findall(r":: (\S+)#(\S+);(\S+)!\S+\.jar", output):
        yield f"{group}:{name}:{version}", "its download failed"


HOST = "127.0.0.1"
_LOG_TAIL_LINES = 40
# Below Linux's ephemeral range, from which an outgoing connection may take a port while the server restarts.
# In random order, because tests may run side by side. No port comes twice before all have come.
_PORTS = cycle(random.sample(range(20_000, 32_000), 12_000))


class ChildProcess:
    """A process that runs in `folder`, appends its output to `log_path`, and ends when this process ends,
    even if this process is killed. `embedded.parent_watchdog` runs it, and stops it when its own standard
    input is closed.
    """

    def __init__(self, folder: Path, log_path: Path) -> None:
        self.pid: int | None = None
        """Id of the process from `spawn` until `stop` or `kill`, else None."""
        self._folder = folder
        self.log_path = log_path
        self._log_start = 0  # position in the log, see `mark_log`
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def is_launched(self) -> bool:
        """True from `spawn` until `stop` or `kill`, even if the process has ended by itself meanwhile."""
        return self._watchdog is not None

    def mark_log(self) -> None:
        """Make `log_text` begin at the present end of the log."""
        self._log_start = self.log_path.stat().st_size

    def log_text(self) -> str:
        """Return the log from the last mark on."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def spawn(
        self,
        command: Sequence[str],
        *,
        grace_s: float,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        umask: int = PRIVATE_UMASK,
    ) -> bool:
        """Start the process, which inherits the files `pass_fds`. Return False if it could not be started.

        When it is stopped, it has `grace_s` between SIGTERM and SIGKILL. `env` None and `umask` -1 mean the
        environment and the umask of this process.
        """
        watchdog_command = [sys.executable, "-I", "-S", parent_watchdog.__file__, str(grace_s), *command]
        with self.log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                watchdog_command,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=pass_fds,
                env=env,
                umask=umask,
                start_new_session=True,  # Ctrl-C is for the parent, which stops its children in order
            )
        assert self._watchdog.stdout is not None
        # The watchdog prints the id of the process. If it could not start the process, it prints nothing.
        pid_line = self._watchdog.stdout.readline()
        self.pid = int(pid_line) if pid_line else None
        return self.pid is not None

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code if the process ends by itself within the time, else None."""
        assert self._watchdog is not None
        try:
            return self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def exit_code(self) -> int | None:
        """Return the exit code of a process that ended by itself, or None while it runs and after `stop` and
        `kill`.
        """
        return None if self._watchdog is None else self._watchdog.poll()

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. No effect if not launched."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()

    def stop(self) -> None:
        """Request the stop, and wait for the end of the process."""
        self.request_stop()
        self._reap()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would, and wait for its end. No effect if not launched."""
        # While the watchdog runs, it has not reaped the process, so the id is still the process's.
        if self._watchdog is not None and self._watchdog.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        """Wait for the end of the watchdog, which ends after the process. No effect if not launched."""
        if self._watchdog is not None:
            with self._watchdog:  # closes the pipes
                self._watchdog.wait()
        self._watchdog = self.pid = None


class ServerProcess(ChildProcess, Startable):
    """A server in its own process. `start` returns when the server serves, and raises MultilineError or
    OSError. Each start has the same folder and the same ports. The log is in the folder.
    """


@contextmanager
def locked_folder(folder: Path, timeout_s: float) -> Iterator[BinaryIO]:
    """Lock a folder until the block and all processes that inherit the lock's file have ended.

    Raises BlockingIOError if another process holds the lock for longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    with (folder / "lock").open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # The other process may be ending, because its parent has just ended. A lock has no event to
                # wait for.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield lock


def shuffled_free_ports() -> Iterator[int]:
    """Yield ports on which no process listens now. Another process may take them before the server does."""
    return (port for port in _PORTS if is_free(port))


def is_free(port: int) -> bool:
    """Return True if no process listens on this port."""
    with socket.socket() as probe:
        # Java sets this, too: then connections of a previous server in TIME_WAIT do not prevent listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def tail(log_text: str, lines: int = _LOG_TAIL_LINES) -> str:
    """Return the last lines of a log, for an error."""
    return "\n".join(log_text.splitlines()[-lines:])
