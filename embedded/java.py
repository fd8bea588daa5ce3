"""Discovery of a Java that Spark and Kafka can run on, and Apache Ivy, which downloads jars."""

import functools
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

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
