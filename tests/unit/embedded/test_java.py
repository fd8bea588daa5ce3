"""The Java that is chosen, and the message if none is suitable."""

from pathlib import Path

import pytest

from embedded.java import JavaNotFound, find_java


def fake_java(home: Path, script: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def report(home: str, version: str) -> str:
    return f"printf '    java.home = {home}\\n    java.specification.version = {version}\\n' >&2"


def test_java_too_old_or_broken_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", report("/opt/old", "1.8"))
    broken = fake_java(tmp_path / "broken", "exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(JavaNotFound) as failure:
        find_java()
    assert str(failure.value).splitlines() == [
        "Java 17 or newer is needed. Looked at JAVA_HOME and PATH:",
        f"  JAVA_HOME: {old} is Java 8",
        f"  PATH: {broken} does not run",
        "Install a JDK or a full JRE, and set JAVA_HOME to its folder or put its java on PATH.",
    ]


def test_java_without_a_module_of_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_down = fake_java(tmp_path, f"[ $1 = --add-modules ] && exit 1\n{report('/opt/small', '21')}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JavaNotFound, match=f"JAVA_HOME: {cut_down} lacks the module jdk.incubator.vector"):
        find_java()
