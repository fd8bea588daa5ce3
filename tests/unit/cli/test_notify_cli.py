"""The options of `notify`: what is refused before anything is read, and what the others become."""

from pathlib import Path

import pytest

from cli import main
from insight.notify.messages import KINDS
from tests.harness.commands import invoke

BROKER = ("--bootstrap-servers", "127.0.0.1:1")


def refused(*arguments: str) -> str:
    """What the command says as it refuses its options."""
    result = invoke(main, ["notify", *BROKER, *arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    return path


def test_a_receiver_has_one_address(file: Path) -> None:
    assert "needs one of --url and --url-file" in refused()
    assert "needs one of --url and --url-file" in refused("--url", "https://h/", "--url-file", str(file))


def test_an_address_that_cannot_be_used_is_refused(file: Path) -> None:
    assert "it is not an address such as https://HOST/PATH" in refused("--url", "hooks")
    said = refused("--url-file", str(file))
    assert f"the first line of {file} cannot be used" in said
    assert "s3cret" not in said


def test_a_token_goes_by_https_only(file: Path) -> None:
    said = refused("--url", "http://hooks.example.org/", "--token-file", str(file))
    assert "a token is sent by https only, or to this machine" in said


def test_an_empty_token_and_certificates_that_are_none_are_refused(file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert "has nothing in its first line" in refused("--url", "https://h/", "--token-file", str(empty))
    assert "it has no certificate as PEM" in refused("--url", "https://h/", "--ca-file", str(file))


def test_kinds_and_formats_are_named() -> None:
    said = refused("--url", "https://h/", "--kind", "lag")
    assert all(f"'{kind}'" in said for kind in KINDS)
    assert "'alertmanager-webhook'" in refused("--url", "https://h/", "--format", "xml")
