"""The options of `notify`: what is refused before anything is read, and what the others become."""

from pathlib import Path

import pytest

from cli import main
from kafka_why.notify.messages import KINDS
from tests.harness.commands import invoke

BROKER = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "needs one of --url and --url-file"),
        ("--url https://h/ --url-file {file}", "needs one of --url and --url-file"),
        ("--url hooks", "it is not an address such as https://HOST/PATH"),
        ("--url-file {file}", "the first line of {file} cannot be used"),
        (
            "--url http://hooks.example.org/ --token-file {file}",
            "a token is sent by https only, or to this machine",
        ),
        ("--url https://h/ --token-file {empty}", "has nothing in its first line"),
        ("--url https://h/ --ca-file {file}", "it has no certificate as PEM"),
        *(("--url https://h/ --kind lag", f"'{kind}'") for kind in KINDS),
        ("--url https://h/ --format xml", "'alertmanager-webhook'"),
    ],
)
def test_refused_notify_options_do_not_show_the_secret(words: str, why: str, tmp_path: Path) -> None:
    files = {"file": tmp_path / "secret", "empty": tmp_path / "empty"}
    files["file"].write_text("s3cret\n")
    files["empty"].touch()
    result = invoke(main, ["notify", *BROKER, *words.format(**files).split()])
    assert result.exit_code == 2, result.output
    said = " ".join(result.stderr.split())
    assert why.format(**files) in said
    assert "s3cret" not in said
