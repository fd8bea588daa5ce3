"""The commands that the page runs for its readers: real processes, which end with the reader."""

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kafka_why.assign.model import recorded_group
from kafka_why.page import app, commands
from kafka_why.page.commands import (
    MAX_OUTPUT_BYTES,
    Command,
    CommandResult,
    CommandRunner,
    CoordinatorLog,
    assign_command,
    replay_command,
    whatif_command,
)
from kafka_why.why.history import History
from kafka_why.why.rebalances import rebalances
from tests.e2e.harness import wait_until
from tests.harness.coroutines import asynchronous
from tests.unit.kafka_why.page_facts import facts_of, fleet_of, played, take_entries, view
from tests.unit.kafka_why.test_assign_groups import TWO_WORKERS
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.why_story import END_MS, STORY

SOURCE = CoordinatorLog(
    checkpoint="/data/coordinator", properties="bootstrap.servers=b:9092\nsasl.password=secret\n"
)
PYTHON = (sys.executable, "-c")
WAITS = "import signal, sys, time; print('here', flush=True); time.sleep(600)"


async def stays() -> bool:
    return False


async def ended(
    runner: CommandRunner, command: Command, has_left: Callable[[], Awaitable[bool]] = stays
) -> CommandResult:
    seen = [one async for one in runner.run(command, has_left)]
    last = seen[-1]
    assert isinstance(last, CommandResult) and all(isinstance(one, float) for one in seen[:-1])
    return last


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (
            "import sys; print(sys.stdin.read()[::-1]); print('no', file=sys.stderr); sys.exit(3)",
            CommandResult(3, "cba\n", "no\n"),
        ),
        # `assign --input` and `--client-config` take a path.
        ("print(open('/dev/stdin').read())", CommandResult(0, "abc\n", "")),
        (f"print('x' * {3 * MAX_OUTPUT_BYTES})", CommandResult(0, "x" * MAX_OUTPUT_BYTES, "")),
        # It takes too long, and is ended.
        (WAITS, CommandResult(None, "", "")),
    ],
    ids=["output", "input by a path", "too much", "too long"],
)
@asynchronous
async def test_command_output_is_returned_within_bounds(program: str, answer: CommandResult) -> None:
    limit_s = 0.5 if program == WAITS else 60
    assert await ended(CommandRunner(PYTHON, limit_s=limit_s), Command([program], b"abc")) == answer


@asynchronous
async def test_command_ends_and_cleans_up_when_its_reader_disconnects(tmp_path: Path) -> None:
    """It is asked before it is killed. Until then the reader sees that it runs."""
    program = (
        "import sys, tempfile, time\n"
        f"with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):\n"
        "    time.sleep(600)"
    )

    async def leaves() -> bool:
        return any(tmp_path.iterdir())

    assert [one async for one in CommandRunner(PYTHON).run(Command([program]), leaves)] == []
    assert list(tmp_path.iterdir()) == []


@asynchronous
async def test_cancelled_reader_leaves_no_process(tmp_path: Path) -> None:
    at = tmp_path / "pid"
    program = f"import os, time; open({str(at)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    runner = CommandRunner(PYTHON)
    reading = asyncio.create_task(ended(runner, Command([program])))
    await asyncio.to_thread(wait_until, lambda: at.exists() and bool(at.read_text()), "the process")
    reading.cancel()
    await asyncio.wait({reading})
    wait_until(lambda: not Path(f"/proc/{at.read_text()}").exists(), "the end of the process")
    assert not runner.is_full


@asynchronous
async def test_concurrent_commands_are_limited() -> None:
    runner = CommandRunner(PYTHON, limit_s=1.5)
    assert not runner.is_full
    running = [asyncio.create_task(ended(runner, Command([WAITS]))) for _ in range(commands.MAX_RUNNING)]
    await asyncio.sleep(0)
    assert runner.is_full
    await asyncio.wait(running)
    assert not runner.is_full


def test_command_line_and_repr_contain_no_secret() -> None:
    """Other users of the machine see the words of a process."""
    for command in (whatif_command(SOURCE, "g", ["a=1"]), replay_command(SOURCE, "g", 0)):
        assert "secret" not in f"{shlex.join(command.arguments)} {SOURCE!r} {command!r} {command}"
        assert b"secret" in command.given
        assert "--client-config FILE" in str(command)


def test_group_names_cannot_become_command_options() -> None:
    names = ["--help", "-c", "--from=/etc/passwd"]
    for name in names:
        replay = replay_command(SOURCE, name, 0).arguments
        assert f"--group={name}" in replay and name not in replay
        whatif = whatif_command(SOURCE, name, [name]).arguments
        assert whatif[-2:] == ["--", name] and f"--try={name}" in whatif
    entries = played(*(command.replace("worker", "--W") for command in TWO_WORKERS))
    assert assign_command(recorded_group(entries, rebalances(entries)[-1])).arguments[1:3] == [
        "--input",
        "/dev/stdin",
    ]


def test_command_buttons_are_shown_only_if_the_commands_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_of(view("g"))
    take_entries(fleet, played(*STORY), END_MS, "g")
    history = History(list(facts_of(fleet, "g").entries), frozenset(), from_start=True, records_read=0)
    with serving(fleet=fleet, read=lambda *_: history, now_ms=lambda: END_MS) as listening:
        at_ms = json.loads(answer(listening, "/api/group?id=g")[2])["rebalances"][0]["at_ms"]
        for program, is_shown in ((Path(__file__), True), (tmp_path / "none", False)):
            monkeypatch.setattr(app, "PROGRAM", program)
            status, _, body = answer(listening, f"/rebalance?group=g&at={at_ms}")
            assert (status, b'class="asks"' in body) == (200, is_shown)
