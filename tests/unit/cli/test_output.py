"""The output of commands: no text of a client controls a terminal, and data is unchanged."""

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.live_view import EscapingConsole
from cli.own_packages import OWN_PACKAGES, ROOT
from kafka_why import errors
from kafka_why.cli.output import (
    GuardedTerminal,
    configure_logs,
    guard_terminals,
    show,
    show_data,
    show_encoded,
    show_json,
    show_stderr,
    unguarded,
)
from kafka_why.cli.program import Program

HOSTILE = "orders\x1b[2J\r\nError: it is fine \x9b31m\x7f\u202e\u2066\u200f\u061c\u2028\U000e0041"
SHOWN = r"orders\x1b[2J\r\nError: it is fine \x9b31m\x7f\u202e\u2066\u200f\u061c\u2028\U000e0041"


def is_safe(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_command_on_a_terminal_writes_no_control_characters(tmp_path: Path) -> None:
    """The text may come from click before the command runs, or from a library's warning."""
    ours, theirs = pty.openpty()
    log = tmp_path / "server.log"
    log.write_text("")
    for words in ([HOSTILE, "--broker-log", str(log)], ["orders", "--broker-log", "\x1b[2J\x9b\u202e"]):
        warns = r"atexit.register(lambda: sys.stderr.write('warning \x1b[3J'))"
        program = f"import atexit, sys; from cli import main; {warns}; main()"
        subprocess.run(
            [sys.executable, "-c", program, "why", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            check=False,
        )
        printed = os.read(ours, 100_000).decode().replace("\r\n", "\n")
        assert r"\x1b[2J" in printed
        assert r"warning \x1b[3J" in printed
        assert is_safe(printed)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("write", [show, show_stderr])
def test_shown_text_is_one_line(write: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    write(f"group {HOSTILE}")
    printed = capsys.readouterr()
    assert printed.out + printed.err == f"group {SHOWN}\n"


@click.command()
@click.argument("kind")
def fails(kind: str) -> None:
    """A command that ends with this error."""
    raise getattr(errors, kind)("a\n\tb")


@pytest.mark.parametrize(
    ("kind", "shown"), [("UserFacingError", r"a\n\tb"), ("MultilineError", "a\n        b")]
)
def test_error_message_keeps_only_the_line_breaks_of_our_own_text(kind: str, shown: str) -> None:
    program = Program("program", commands_at={"fails": f"{__name__}:fails"})
    result = CliRunner().invoke(program, ["fails", kind])
    assert (result.exit_code, result.stderr) == (1, f"Error: {shown}\n")


def test_json_output_is_equivalent_and_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"group": HOSTILE, "name": "gruppe é"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"group": HOSTILE, "name": "gruppe é"}
    assert is_safe(printed)
    assert "gruppe é" in printed
    show_encoded(json.dumps(HOSTILE, ensure_ascii=False))
    assert json.loads(line := capsys.readouterr().out) == HOSTILE
    assert is_safe(line)


def test_data_for_programs_is_written_unchanged(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    show_data(f"{HOSTILE},0\n")
    assert capfdbinary.readouterr().out == f"{HOSTILE},0\n".encode()


class Terminal(io.StringIO):
    encoding, errors = "utf-8", "strict"

    def isatty(self) -> bool:
        return True


def test_terminal_guard_escapes_direct_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    guard_terminals()
    guard_terminals()
    assert unguarded(sys.stdout) is terminal
    assert isinstance(sys.stdout, GuardedTerminal)
    click.echo(f"\t{HOSTILE}")
    click.secho("red", fg="red")
    sys.stdout.write(f"{HOSTILE} \ud800\n")
    show_data(HOSTILE)
    assert is_safe(terminal.getvalue().replace("\t", ""))
    assert terminal.getvalue().startswith("\torders\\x1b[2J\\r\nError")


def test_log_entry_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, before = Terminal(), structlog.get_config()
    monkeypatch.setattr("sys.stderr", terminal)
    try:
        configure_logs()
        structlog.get_logger().warning("a group", group_id="a\x1b[2Jb", other=HOSTILE)
    finally:
        structlog.configure(**before)
    printed = terminal.getvalue()
    assert printed.count("\n") == 1
    assert r"a\x1b[2Jb" in printed
    assert not [text for text in ("\x1b[2J", "\r", "\x9b", "\u202e", "\u2028") if text in printed]


def test_live_view_escapes_control_sequences_in_values(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    guard_terminals()
    table = Table("Group")
    table.add_row(Text("orders\x1b[2J\x9b31m\u202e"))
    with Live(table, console=EscapingConsole(), auto_refresh=False, redirect_stdout=False) as live:
        live.refresh()
    assert "\x1b[?25l" in terminal.getvalue()  # rich hides the cursor, past the guard
    assert not {"\x1b[2J", "\x9b", "\u202e"} & {*terminal.getvalue().split("orders"), *terminal.getvalue()}
    assert r"orders\x1b" in terminal.getvalue()


ELSEWHERE = [name for name in OWN_PACKAGES if name != "cli"]  # another `cli` runs in the place of the command


def start(planted: Path | None, *args: str) -> subprocess.CompletedProcess[str]:
    folders = [str(folder) for folder in (planted, ROOT) if folder is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-P", "-c", "from cli import main; main()", *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("names", [["state"], ELSEWHERE], ids=["one", "all"])
def test_foreign_package_that_shadows_ours_is_refused_at_start(names: list[str], tmp_path: Path) -> None:
    planted = {name: tmp_path / name / "__init__.py" for name in names}
    for foreign in planted.values():
        foreign.parent.mkdir()
        foreign.write_text("raise SystemExit('the foreign package was imported')\n")
    ended = start(tmp_path, "run", "--help")
    assert (ended.returncode, ended.stdout) == (78, "")
    which = ", ".join(f"'{name}' is {foreign}" for name, foreign in planted.items())
    assert ended.stderr == (
        f"Error: the project needs its own packages, which are in {ROOT}, but {which}: install it in a "
        "virtual environment that has nothing else, and take folders with such names off PYTHONPATH\n"
    )
