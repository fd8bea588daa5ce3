"""The work of Connect and of Kafka Streams by the classic protocol, from the bytes of assignments."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.why.model import ConnectWork, Rebalance, StreamsTasks
from kafka_why.why.report import names_in, report
from kafka_why.why.text import details
from tests.harness.histories import Recorder
from tests.unit.kafka_why.test_page_findings import SETTLED

DATA = Path(__file__).parents[2] / "data"


def recorded(name: str) -> list[bytes]:
    return [bytes.fromhex(line) for line in (DATA / f"{name}_assignments.txt").read_text().split()]


CONNECT, WRITTEN_STREAMS = recorded("connect"), recorded("streams")
EAGER, EAGER_NOTHING, EAGER_MISMATCH = CONNECT[:3]
NEW, REVOKED, DELAYED, MISMATCH = CONNECT[3:7]
LATEST = WRITTEN_STREAMS[-4:]
"""Of version 11: no tasks, active tasks and standbys, a probing rebalance, a follow-up and an error."""


def history(protocol_name: str, assignments: Mapping[str, bytes], *, ended_ms: int = 0) -> list[HistoryEntry]:
    """Two generations of members a and b. In the second the leader assigns these bytes."""
    entries = Recorder().play(*SETTLED)
    ids = {entry.member_id[0]: entry.member_id for entry in entries if entry.member_id}
    found = {ids[name]: data for name, data in assignments.items()}
    named = [replace(one, protocol_name=protocol_name) if one.protocol_name else one for one in entries]
    assert named[-1].type is EntryType.STABLE
    return [*named[:-1], replace(named[-1], assignments=found, at_ms=named[-1].at_ms + ended_ms)]


def last(protocol_name: str, assignments: Mapping[str, bytes], *, ended_ms: int = 0) -> Rebalance:
    return report("g", history(protocol_name, assignments, ended_ms=ended_ms), 0).rebalances[-1]


def lines(r: Rebalance, *labels: str) -> list[tuple[str, str]]:
    """Return the lines with these labels, and those that continue them."""
    found: list[tuple[str, str]] = []
    label = ""
    for new, text in details(r, 0, names_in((), [r], {})):
        label = new or label
        if label in labels:
            found.append((new, text))
    return found


def user_data(info: bytes) -> bytes:
    """Return a consumer's assignment with this user data, as Streams has it."""
    return encode_assignment(Assignment((TopicPartition("orders", 0),), info))


def test_connectors_and_tasks_are_reported_by_name() -> None:
    r = last("sessioned", {"a": NEW, "b": REVOKED})
    (of_a, of_b) = r.connect.values()
    assert of_a == ConnectWork(
        connectors=["source"],
        tasks={"source": [0, 1]},
        revoked_connectors=[],
        revoked_tasks={},
        is_incremental=True,
        delay_ms=0,
        error=0,
    )
    assert (of_b.revoked_connectors, of_b.revoked_tasks) == (["sink"], {"source": [0, 1, 2, 3]})
    assert r.assignment_bytes is None
    assert lines(r, "assigned", "next", "delayed", "error") == [
        ("assigned", "a  + connector source, tasks source 0-1"),
        ("", "b  + tasks sink 0   - connector sink, tasks source 0-3"),
        ("next", "another rebalance at once, which assigns what was revoked"),
    ]


BEHIND = ("error", "nothing was assigned, because a worker has newer configurations than the leader")
ONLY_A = ("assigned", "a  + connector source, tasks source 0-1")


@pytest.mark.parametrize(
    ("protocol_name", "of_a", "of_b", "expected"),
    [
        ("default", EAGER, EAGER_NOTHING, [("assigned", "a  connectors sink, source, tasks source 0-2")]),
        (
            "compatible",
            DELAYED,
            DELAYED,
            [
                (
                    "delayed",
                    "the work of a worker that left waits 5 min 0 s for its return "
                    "(scheduled.rebalance.max.delay.ms)",
                )
            ],
        ),
        ("compatible", MISMATCH, MISMATCH, [BEHIND]),
        ("compatible", EAGER_MISMATCH, EAGER_MISMATCH, [BEHIND]),
        ("sessioned", NEW, b"", [ONLY_A]),
        *(
            (
                name,
                NEW,
                of_b,
                [("assigned", f"bytes that are not a consumer assignment: a {len(NEW)}, b {len(of_b)}")],
            )
            for name, of_b in (("sessioned", NEW[:-1]), ("another", NEW), ("stream", NEW))
        ),
        ("stream", user_data(LATEST[1]), user_data(b"x"), []),
    ],
)
def test_work_of_a_connect_generation_is_reported_line_by_line(
    protocol_name: str, of_a: bytes, of_b: bytes, expected: list[tuple[str, str]]
) -> None:
    r = last(protocol_name, {"a": of_a, "b": of_b})
    assert lines(r, "assigned", "next", "delayed", "error", "tasks") == expected


def test_streams_tasks_and_standbys_are_reported_by_name() -> None:
    r = last("stream", {"a": user_data(LATEST[1]), "b": user_data(LATEST[0])})
    assert list(r.streams.values()) == [
        StreamsTasks(
            active=["0_1", "größe-\N{GRINNING FACE}__1_0"],
            standby=["0_2", "1_3"],
            next_rebalance_ms=None,
            error=None,
        ),
        StreamsTasks(active=[], standby=[], next_rebalance_ms=None, error=None),
    ]
    assert r.moves is not None  # its partitions are told as before
    assert lines(r, "tasks", "follow-up", "probing", "error") == [
        ("tasks", "a  active 0_1, größe-\N{GRINNING FACE}__1_0; standby 0_2, 1_3")
    ]


def test_probing_rebalance_and_follow_up_are_reported() -> None:
    at_ms = 1_700_000_600_000
    r = last("stream", {"a": user_data(LATEST[2]), "b": user_data(LATEST[3])}, ended_ms=at_ms - 600_000)
    assert [tasks.next_rebalance_ms for tasks in r.streams.values()] == [at_ms, 0]
    assert lines(r, "follow-up", "probing", "error") == [
        ("follow-up", "b asks for another rebalance at once"),
        ("probing", "another rebalance in 10 min 0 s, to see whether copies of state have caught up"),
        ("error", "SHUTDOWN_REQUESTED: b"),
    ]


@pytest.mark.parametrize("version", range(11))
def test_every_version_of_streams_has_its_tasks(version: int) -> None:
    r = last("stream", {"a": user_data(WRITTEN_STREAMS[4 * version + 1])})
    assert lines(r, "tasks")[0][1].startswith("a  active 0_1")
