"""Discovery of a Java that Spark and Kafka can run on."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

MIN_JAVA_VERSION = 17
# Spark adds this module to the command of every JVM it starts. Runtimes reduced by jlink often lack it.
NEEDED_MODULE = "jdk.incubator.vector"
QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""The option of a JVM without the optimizing compiler, which takes half of the processor time of a start."""
_PROBE_TIMEOUT_S = 60


class JavaNotFound(RuntimeError):
    """No suitable Java was found. The message lists the places, the faults found there, and what to do."""


def find_java() -> Path:
    """Return the ``java`` executable of the first suitable Java: that of ``$JAVA_HOME``, else the one on
    ``$PATH``.

    A Java is suitable if it is Java 17 or newer and has the module that Spark loads. The path is
    ``<java.home>/bin/java`` as Java itself reports it, not a version manager's shim, because Spark expects
    ``find_java().parent.parent`` in ``JAVA_HOME``. Raises `JavaNotFound`.
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
