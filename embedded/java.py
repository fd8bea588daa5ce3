"""Discovery of a Java that Spark and Kafka can run on, and Apache Ivy, which downloads jars."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

from embedded import parent_watchdog
from kafka_why.local_files import PRIVATE_UMASK

MIN_JAVA_VERSION = 17
# Spark adds this module to the command of every JVM it starts. Runtimes reduced by jlink often lack it.
NEEDED_MODULE = "jdk.incubator.vector"
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""The option of a JVM without the optimizing compiler, which takes half of the processor time of a start."""
_PROBE_TIMEOUT_S = 60


class JavaNotFound(RuntimeError):
    """No suitable Java was found. The message lists the places, the faults found there, and what to do."""


def find_java() -> Path:
    """Return the ``java`` executable of the first suitable Java: in ``$JAVA_HOME``, else on ``$PATH``.

    A Java is suitable if it is Java 17 or newer and has the module that Spark loads. The path is
    ``<java.home>/bin/java`` as Java itself reports it, because Spark expects ``find_java().parent.parent`` in
    ``JAVA_HOME``. A version manager's shim is not there. Raises `JavaNotFound`.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache
def _find_java(java_home: str | None, path: str | None) -> Path:
    refused: list[str] = []
    for source, java in _candidates(java_home, path):
        probe = _probe(java)
        if probe is None:
            refused.append(f"{source}: {java} does not run")
        elif probe[0] < MIN_JAVA_VERSION:
            refused.append(f"{source}: {java} is Java {probe[0]}")
        elif _run(java, "--add-modules", NEEDED_MODULE, "-version") is None:
            refused.append(f"{source}: {java} lacks the module {NEEDED_MODULE}, which Spark loads")
        else:
            return probe[1] / "bin" / "java"
    looked_at = "\n  ".join(["Looked at JAVA_HOME and PATH:", *(refused or ["neither has a java"])])
    raise JavaNotFound(
        f"Java {MIN_JAVA_VERSION} or newer is needed. {looked_at}\n"
        "Install a JDK or a full JRE, and set JAVA_HOME to its folder or put its java on PATH."
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)


def _probe(java: Path) -> tuple[int, Path] | None:
    """Return a Java's version and home, or None if it does not run or does not answer like a Java."""
    report = _run(java, "-XshowSettings:properties", "-version")
    found = dict(re.findall(r"^ +(java\.\S+) = (.+)$", report or "", re.MULTILINE))
    # "1.8" before Java 9, "17" since.
    version = re.match(r"(?:1\.)?(\d+)", found.get("java.specification.version", ""))
    if version is None or "java.home" not in found:
        return None
    return int(version[1]), Path(found["java.home"])


def _run(java: Path, *options: str) -> str | None:
    """Return the standard error output of a Java, or None if it fails."""
    command = [str(java), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stderr


# The download of jars from Maven repositories by Apache Ivy, which the pyspark wheel ships.
#
# Ivy runs as a program (``java -jar``), not through Spark, because ``spark.jars.packages`` would resolve at
# each start and would put the jars on Python's own path too.


CONNECT_TIMEOUT_MS = "20000"
READ_TIMEOUT_MS = "60000"
# Ivy runs for only a second or two, so the optimizing compiler would cost more than it saves.
_JVM_OPTIONS = (QUICK_COMPILER, "-XX:+UseSerialGC")


class Artifact(NamedTuple):
    """A Maven coordinate."""

    group: str
    name: str
    version: str

    @classmethod
    def parse(cls, coordinate: str) -> "Artifact":
        """Read ``group:artifact:version``. Raises ValueError for anything else."""
        group, name, version = coordinate.split(":")
        return cls(group, name, version)

    def __str__(self) -> str:
        return ":".join(self)


class IvyFailed(RuntimeError):
    """Ivy could not get every jar. ``missing`` has Ivy's reason by coordinate or file."""

    def __init__(self, missing: dict[str, str], output: str) -> None:
        super().__init__(f"Ivy could not get {len(missing)} of the jars")
        self.missing = missing
        self.output = output


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
    module.write_bytes(_module_xml(artifacts, transitive=transitive))
    settings.write_bytes(_settings_xml(home / "cache"))
    options = {
        "-settings": [str(settings)],
        "-ivy": [str(module)],
        "-types": ["jar", "bundle"],
        "-confs": ["jars"],
        "-retrieve": [f"{into}/[artifact]-[revision](-[classifier]).[ext]"],
    }
    command = [str(find_java()), *_JVM_OPTIONS, "-jar", str(_ivy_jar())]
    for option, values in options.items():
        command += [option, *values]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line)
            on_line(line.strip())
    if ivy.returncode != 0:
        output = "".join(lines)
        raise IvyFailed(dict(_failures(output)), output)


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None, "pyspark is a dependency of this project"
    return next((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))


def _module_xml(artifacts: Iterable[Artifact], *, transitive: bool) -> bytes:
    module = ET.Element("ivy-module", version="2.0")
    ET.SubElement(module, "info", organisation="spark-group-coordinator", module="jars")
    ET.SubElement(ET.SubElement(module, "configurations"), "conf", name="jars")
    dependencies = ET.SubElement(module, "dependencies")
    # Ivy calls the artifact alone "master", and the artifact with all its dependencies "default".
    conf = f"jars->{'default' if transitive else 'master'}"
    for artifact in artifacts:
        names = {"org": artifact.group, "name": artifact.name, "rev": artifact.version}
        ET.SubElement(dependencies, "dependency", {**names, "conf": conf})
    return ET.tostring(module)


def _settings_xml(cache: Path) -> bytes:
    settings = ET.Element("ivysettings")
    # Our own SHA-256 list replaces the repository's checksums. Look-ups of sources and documentation would
    # double the number of requests.
    ET.SubElement(settings, "property", name="ivy.checksums", value="")
    for extra in ("sources", "javadoc"):
        ET.SubElement(settings, "property", name=f"ivy.maven.lookup.{extra}", value="false")
    limits = {"name": "net", "connectionTimeout": CONNECT_TIMEOUT_MS, "readTimeout": READ_TIMEOUT_MS}
    ET.SubElement(ET.SubElement(settings, "timeout-constraints"), "timeout-constraint", limits)
    ET.SubElement(settings, "settings", defaultResolver="maven")
    ET.SubElement(settings, "caches", defaultCacheDir=str(cache))
    resolver = {"name": "maven", "m2compatible": "true", "useMavenMetadata": "false"}
    resolver["timeoutConstraint"] = limits["name"]
    if mirror := maven_mirror():
        resolver["root"] = mirror
    ET.SubElement(ET.SubElement(settings, "resolvers"), "ibiblio", resolver)
    return ET.tostring(settings)


def maven_mirror() -> str | None:
    """Return the repository configured on this machine instead of Maven Central, or None if there is none.

    It is ``$DEFAULT_ARTIFACT_REPOSITORY`` (the variable Spark reads for the same purpose), else the mirror of
    ``central`` in ``~/.m2/settings.xml``.
    """
    if named := os.environ.get("DEFAULT_ARTIFACT_REPOSITORY"):
        return named
    try:
        settings = ET.parse(Path.home() / ".m2" / "settings.xml")  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError):
        return None
    for mirror in settings.iterfind(".//{*}mirror"):
        mirrored = (mirror.findtext("{*}mirrorOf") or "").replace(" ", "").split(",")
        if {"*", "external:*", "central"} & set(mirrored) and "!central" not in mirrored:
            return mirror.findtext("{*}url")
    return None


def _failures(output: str) -> Iterator[tuple[str, str]]:
    """Yield the failures in Ivy's report: (coordinate or file, reason)."""
    server_errors = re.findall(r"Server access error at url \S*?/([^/ ]+) \((.+)\)$", output, re.MULTILINE)
    for group, name, version, reason in re.findall(r":: (\S+)#(\S+);(\S+): (.+)$", output, re.MULTILINE):
        details = [why for file, why in server_errors if file.startswith(f"{name}-{version}.")]
        yield f"{group}:{name}:{version}", details[0] if details else reason
    for group, name, version in re.findall(r":: (\S+)#(\S+);(\S+)!\S+\.jar", output):
        yield f"{group}:{name}:{version}", "its download failed"


# A server's JVM as a child of this process, with its folder and its ports.


HOST = "127.0.0.1"
_LOG_TAIL_LINES = 40
# Below Linux's ephemeral range, because an outgoing connection may take a port of that range while the server
# restarts.
_PORT_RANGE = range(20_000, 32_000)


class ChildJvm:
    """A JVM that runs in `folder`, appends its output to `log_path`, and ends with this process, however that
    ends (see `embedded.parent_watchdog`).
    """

    def __init__(self, folder: Path, log_path: Path) -> None:
        self.pid: int | None = None
        """Process id of the JVM while it runs."""
        self._folder = folder
        self._log_path = log_path
        self._log_start = 0
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def is_launched(self) -> bool:
        """True from `launch` until `stop` or `kill`, even if the JVM has ended by itself meanwhile."""
        return self._watchdog is not None

    def mark_log(self) -> None:
        """Make `log_text` begin at the present end of the log."""
        self._log_start = self._log_path.stat().st_size

    def log_text(self) -> str:
        """Return the log from the last mark on."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def launch(self, command: Sequence[str], *, grace_s: float, pass_fds: Sequence[int] = ()) -> bool:
        """Start the JVM, which inherits the files `pass_fds`. Return False if its process could not be
        started.
        """
        guarded = [sys.executable, "-I", "-S", parent_watchdog.__file__, str(grace_s), *command]
        with self._log_path.open("ab") as log:
            self._watchdog = subprocess.Popen(
                guarded,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=pass_fds,
                umask=PRIVATE_UMASK,
                start_new_session=True,  # Ctrl-C must reach only the parent, which stops the JVM last
            )
        assert self._watchdog.stdout is not None
        pid = self._watchdog.stdout.readline()
        self.pid = int(pid) if pid else None
        return self.pid is not None

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code if the JVM ends by itself within the time, else None."""
        assert self._watchdog is not None
        try:
            return self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def exit_code(self) -> int | None:
        """Return the exit code of a JVM that ended by itself, or None while it runs and after `stop` and
        `kill`.
        """
        return None if self._watchdog is None else self._watchdog.poll()

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. No effect if down."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()

    def stop(self) -> None:
        """Request the stop, and wait for the end of the JVM."""
        self.request_stop()
        self._reap()

    def kill(self) -> None:
        """End the JVM with SIGKILL, as a crash would, and wait for its end. No effect if down."""
        # While the watchdog runs, it has not reaped the JVM, so the process id is still the JVM's.
        if self._watchdog is not None and self._watchdog.poll() is None and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        if self._watchdog is not None:
            with self._watchdog:
                self._watchdog.wait()
        self._watchdog = self.pid = None


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
    # Random, because tests may run side by side.
    return (port for port in random.sample(_PORT_RANGE, len(_PORT_RANGE)) if is_free(port))


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


def tail(log_text: str) -> str:
    """Return the last lines of a log, for an error."""
    return "\n".join(log_text.splitlines()[-_LOG_TAIL_LINES:])
