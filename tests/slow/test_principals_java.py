"""The cases of `tests.harness.principals` against Kafka's and Java's own classes."""

import subprocess
from pathlib import Path

from cryptography import x509

from embedded.jars import class_path
from embedded.java import find_java
from tests.harness.principals import CASES, NAMES, request_of

HARNESS = Path(__file__).parents[1] / "harness" / "principals.java"


def ask_java(lines: list[str]) -> list[str | None]:
    """Return the answers of the Java harness, None for a name to which no rule applies."""
    classpath = class_path("broker")
    command = [str(find_java()), "-Dlog4j2.level=OFF", "-cp", classpath, str(HARNESS)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [None if line == "none" else text_of(line) for line in done.stdout.split()]


def text_of(word: str) -> str:
    return "" if word == "-" else bytes.fromhex(word).decode()


def hex_of(text: str) -> str:
    return text.encode().hex() or "-"


def test_certificate_principals_equal_those_of_java() -> None:
    rules = [f"rule {hex_of(rules)} {hex_of(name)}" for rules, name, _ in CASES]
    subjects = [x509.load_der_x509_csr(request_of(attributes)).subject for attributes, _ in NAMES]
    names = [f"name {subject.public_bytes().hex()}" for subject in subjects]
    expected = [*(principal for _, _, principal in CASES), *(text for _, text in NAMES)]
    assert ask_java(rules + names) == expected
