"""Escaping on the pages of members and of the coordinator: texts of strangers are shown as text in each
field.
"""

import asyncio
import html
import json
import re
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from kafka_why.assign.model import recorded_group
from kafka_why.contract.claims import Claim
from kafka_why.contract.codec import encode
from kafka_why.metrics.http import HttpPort
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
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.page.words import isolated
from kafka_why.service_state import StateReader
from kafka_why.why.history import History
from kafka_why.why.report import analyze
from tests.e2e.harness import wait_until
from tests.harness import scraped
from tests.harness.waiting import asynchronous
from tests.unit.kafka_why.page_facts import LAYOUT, facts_of, fleet_of, member, played, take_entries, view
from tests.unit.kafka_why.test_assign_groups import TWO_WORKERS
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.test_page_coordinator import pending
from tests.unit.kafka_why.why_story import END_MS, STORY

PAGE = Path(__file__).parents[3] / "kafka_why" / "page"
FIELDS = (
    "client",
    "host",
    "group",
    "reason",
    "message",
    "request",
    "key",
    "owner",
    "folder",
    "checkpoint",
    "version",
    "skipped",
    "setting",
    "value",
    "transaction",
    "alarm",
    "replica",
)


def hostile(field: str) -> str:
    return f"\"'><script>{field}()</script>{{{{ 7919*7907 }}}}\u202e\u05d0 \u05d1"


def shown(field: str) -> str:
    """Return the text of a page that shows this: without what reorders the text beside it."""
    text = hostile(field).replace("\u202e", r"\u202e").replace("\u05d0 \u05d1", "\u2068\u05d0 \u05d1\u2069")
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


@pytest.fixture(scope="module")
def served() -> Iterator[socket.socket]:
    """Yield a page of which each field that a stranger can set is hostile."""
    topics = ServiceTopics()
    there = replace(member("m"), client_id=hostile("client"), client_host=hostile("host"))
    fleet = fleet_of(view(hostile("group"), members=[there]))
    blamed = [
        replace(e, client_id=hostile("client"), client_host=hostile("host")) if e.client_id else e
        for e in played(*STORY)
    ]
    take_entries(fleet, blamed, END_MS, hostile("group"))
    started = {
        "type": "CoordinatorStarted",
        "at_ms": END_MS,
        "from_batch": 1,
        "settings": {hostile("setting"): hostile("value")},
        "skip": [hostile("skipped")],
        "code_version": hostile("version"),
    }
    fleet.apply(LAYOUT.events_topic, None, encode(started), END_MS)
    claim = Claim(
        epoch=1,
        claim_id="c",
        owner_id="o",
        requests_topic_id="t",
        host=hostile("owner"),
        pid=1,
        folder=hostile("folder"),
        since_ms=0,
        tick_interval_ms=100,
        checkpoint=hostile("checkpoint"),
    )
    topics.apply_claim(0, b"c", encode(claim))
    letter = {name: hostile(name) for name in ("reason", "message", "request")}
    topics.apply_dead_letter(END_MS, encode({**letter, "key": hostile("key").encode()}))
    waiting = replace(pending(END_MS), transactional_id=hostile("transaction"), group_id=hostile("group"))
    topics.apply_pending(b"p", encode(waiting))
    topics.mark_complete()
    overview = Overview(fleet)
    lines = overview.lines(END_MS)
    busy = scraped.busy()
    busy.status = replace(busy.status, alarm=hostile("alarm"))
    busy.replica = replace(busy.replica, phase="seeding", reason=hostile("replica"))
    with (
        HttpPort("127.0.0.1", 0, busy.registry, state=lambda: encode(busy.state())) as port,
        serving(
            fleet=fleet,
            lines=lambda: lines,
            members=lambda: overview.members,
            service_topics=topics,
            service_state=StateReader(port.url),
            now_ms=lambda: END_MS,
        ) as listening,
    ):
        yield listening


def body(listening: socket.socket, path: str) -> str:
    status, _, found = answer(listening, path)
    assert status == 200
    return found.decode()


def test_every_field_of_a_page_is_escaped_in_html(served: socket.socket) -> None:
    text = "".join(body(served, path) for path in ("/members", "/members?by=host", "/coordinator"))
    for field in FIELDS:
        assert f"<script>{field}" not in text
        assert shown(field) in text, field
    assert "\u202e" not in text
    assert str(7919 * 7907) not in text


def test_url_parameters_are_escaped_in_html(served: socket.socket) -> None:
    path = "%22%3E%3Cscript%3Eq()%3C/script%3E"
    for name in ("q", "sort", "by", "page"):
        assert "<script>q" not in body(served, f"/members?{name}={path}")


def test_json_contains_what_the_pages_show(served: socket.socket) -> None:
    for path, field in (
        ("/api/members", "client"),
        ("/api/members?by=host", "host"),
        ("/api/coordinator", "key"),
    ):
        assert json.dumps(hostile(field), ensure_ascii=False) in body(served, path)


def test_search_field_echoes_the_text_unchanged(served: socket.socket) -> None:
    asked = "a\u202e\u05d0b"
    assert f'name="q" id="search" value="{asked}"' in body(served, f"/?q={quote(asked)}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gruppe é 群", "gruppe é 群"),
        ("48\u202f210 records", "48\u202f210 records"),
        ("two\nlines", "two\nlines"),
        ("a\u202eb\u2069\u200f\u200bc", r"a\u202eb\u2069\u200f\u200bc"),
        ("\u05d0\u05d1-12 14 times", "\u2068\u05d0\u05d1\u2069-12 14 times"),
        ("\u0627 \u0628, \u05d0", "\u2068\u0627 \u0628\u2069, \u2068\u05d0\u2069"),
    ],
)
def test_bidirectional_text_cannot_reorder_its_surroundings(text: str, shown: str) -> None:
    assert isolated(text) == shown


def test_every_template_is_written_through_the_same_filter() -> None:
    """Titles, attributes and texts of pictures, too: only what the page itself writes may be markup."""
    templates = "".join(file.read_text() for file in (PAGE / "templates").glob("*.html"))
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", templates)
    assert set(re.findall(r'="\{\{ ([\w.]+)\|exact }}"', templates)) == {
        "it.group_id",
        "selection.text",
        "text",
    }
    assert "innerHTML" not in (PAGE / "static" / "page.js").read_text()


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
        assert b"secret" in command.stdin
        assert "--client-config FILE" in str(command)


def test_group_names_cannot_become_command_options() -> None:
    names = ["--help", "-c", "--from=/etc/passwd"]
    for name in names:
        replay = replay_command(SOURCE, name, 0).arguments
        assert f"--group={name}" in replay and name not in replay
        whatif = whatif_command(SOURCE, name, [name]).arguments
        assert whatif[-2:] == ["--", name] and f"--try={name}" in whatif
    entries = played(*(command.replace("worker", "--W") for command in TWO_WORKERS))
    assert assign_command(recorded_group(entries, analyze(entries).rebalances[-1])).arguments[1:3] == [
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
