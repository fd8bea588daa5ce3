"""Java programs of campaigns, compiled by the JVM's own compiler."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from embedded.java import find_java
from embedded.paths import cache_dir
from tests.harness.java_tools import java_options


def compiled(sources: Path, jars: Iterable[Path]) -> Path:
    """Return a folder with the classes of the Java files in this folder, compiled if they are newer."""
    folder = cache_dir() / "campaigns" / sources.parent.name / sources.name
    files = sorted(sources.glob("*.java"))
    done = folder / "done"
    if not done.exists() or max(it.stat().st_mtime for it in files) > done.stat().st_mtime:
        compiler = ["-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-d", str(folder)]
        classpath = java_options(jars)[-2:]
        subprocess.run([str(find_java()), *compiler, *classpath, *map(str, files)], check=True)
        done.touch()
    return folder
