"""The demo's own checks: each finds the fault it exists for."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from assignors.kafka.api import Assignment, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment
from cli.demo import checks, report
from cli.demo.checks import Check
from cli.demo.load import consumed
from cli.demo.proof import Deed, DemoResult
from cli.demo.strike import Struck, is_target, uncommitted_batch_of
from cli.demo.watch import client_of, held, stable_with
from records.history import CoordinatorStarted
from records.pack import pack
from state.errors import ErrorCode
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.responses import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse
from state.messages import Response

NAMES: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "request": "requests-0-1"}
UUID = "dd3ce9d5-1cf1-5738-98c8-e7d245d76648"


def event(seq: int, kind: EntryType = EntryType.MEMBER_ADDED, **fields: Any) -> HistoryEntry:
    given: dict[str, Any] = {
        "group_id": "g",
        "incarnation": "requests-0-1",
        "at_ms": seq,
        "from_state": "Stable",
        "to_state": "Stable",
        "generation": 1,
        "reason": "because",
        "rule": "E4",
        "cause": "requests-0-9",
    }
    return HistoryEntry(version=1, type=kind, seq=seq, **given | fields)


def stable(seq: int, holdings: Mapping[str, tuple[int, ...]], generation: int = 1) -> HistoryEntry:
    assignments = {
        f"{client}-{UUID}": encode_assignment(Assignment(tuple(TopicPartition("t", p) for p in numbers)))
        for client, numbers in holdings.items()
    }
    return event(
        seq,
        EntryType.STABLE,
        from_state="CompletingRebalance",
        generation=generation,
        assignments=assignments,
    )


def removed(client: str, rule: str, reason: str) -> HistoryEntry:
    return event(1, EntryType.MEMBER_REMOVED, member_id=f"{client}-{UUID}", rule=rule, reason=reason)


def answer(request: str, error: ErrorCode = ErrorCode.NONE) -> bytes:
    return msgspec.json.encode(
        HeartbeatResponse(group_id="g", correlation_id="c", request=request, error_code=error)
    )


def test_a_client_is_known_by_its_member_id() -> None:
    assert client_of(f"consumer-1-{UUID}") == "consumer-1"


def test_the_consumer_is_one_as_anybody_would_write_it() -> None:
    """It imports only one module of this project: the one that writes records to a file."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    ours = tuple(project["tool"]["importlinter"]["root_packages"])
    code = (
        "import sys, cli.demo.consumer;"
        f"print(*sorted(name for name in sys.modules if name.partition('.')[0] in {ours}))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == [
        "cli",
        "cli.consumed",
        "cli.demo",
        "cli.demo.consumer",
    ]


def test_the_history_is_read_without_its_repetitions() -> None:
    entries = [event(1), event(2), event(2), event(3)]
    history = checks.read_history(map(msgspec.json.encode, entries))
    assert [e.seq for e in history.of("g")] == [1, 2, 3]
    assert checks.no_gaps(history).ok
    assert checks.history_told_once(history).ok
    assert history.duplicates == 1


def test_a_gap_and_a_retold_entry_are_found() -> None:
    entries = [event(1), event(3), event(3, reason="another")]
    history = checks.read_history(map(msgspec.json.encode, entries))
    assert not checks.no_gaps(history).ok
    assert not checks.history_told_once(history).ok


def test_no_history_is_no_proof() -> None:
    assert not checks.no_gaps(checks.read_history([])).ok
    assert not checks.answered_one_way(checks.read_answers([])).ok
    assert not checks.all_consumed(set(), {}).ok
    assert not checks.one_owner_each([], 12).ok


def test_a_request_answered_in_two_ways_is_found() -> None:
    same = checks.read_answers([answer("requests-0-1"), answer("requests-0-1"), answer("requests-0-2")])
    assert checks.answered_one_way(same).ok
    assert same.duplicates == 1
    two_ways = checks.read_answers(
        [answer("requests-0-1"), answer("requests-0-1", ErrorCode.UNKNOWN_MEMBER_ID)]
    )
    assert not checks.answered_one_way(two_ways).ok


def test_early_answers_are_compared_and_counted_apart() -> None:
    query, early = answer("requests-0-1"), answer("requests-0-1", ErrorCode.UNKNOWN_MEMBER_ID)
    same = checks.read_answers([query], [query])
    assert checks.answered_one_way(same).ok
    assert (same.early, same.duplicates) == (1, 0)
    assert not checks.answered_one_way(checks.read_answers([query], [early])).ok


def test_answers_of_a_pack_count_each_for_itself() -> None:
    one, other = answer("requests-0-1#0"), answer("requests-0-1#1")
    packed = checks.read_answers([pack([one, other]), one])
    assert packed.by_request == {"requests-0-1#0": 2, "requests-0-1#1": 1}
    assert checks.answered_one_way(packed).ok


@pytest.mark.parametrize(
    ("counts", "ok"), [({"a": 1, "b": 2}, True), ({"a": 1}, False), ({"a": 1, "b": 1, "c": 1}, True)]
)
def test_every_record_has_to_be_consumed_at_least_once(counts: dict[str, int], ok: bool) -> None:
    assert checks.all_consumed({"a", "b"}, counts).ok is ok


@pytest.mark.parametrize(
    ("holdings", "ok"),
    [
        ({"a": (0, 1), "b": (2,)}, True),
        ({"a": (0, 1, 2), "b": ()}, True),
        ({"a": (0, 1)}, False),
        ({"a": (0, 1), "b": (1, 2)}, False),
    ],
)
def test_each_partition_has_one_owner(holdings: dict[str, tuple[int, ...]], ok: bool) -> None:
    assert checks.one_owner_each([stable(1, {"a": (0, 1, 2)}), stable(2, holdings)], 3).ok is ok


def test_only_the_killed_one_may_be_thrown_out() -> None:
    expired = removed("consumer-2", "T5", "no heartbeat")
    left = removed("consumer-1", "L6", "left the group")
    assert checks.only_expired([expired, left], "consumer-2").ok
    assert not checks.only_expired([left], "consumer-2").ok
    assert not checks.only_expired([expired, removed("consumer-3", "C1", "did not rejoin")], "consumer-2").ok


def test_a_group_at_the_real_broker_is_found() -> None:
    assert checks.broker_knows_no_group([]).ok
    assert not checks.broker_knows_no_group(["demo"]).ok


@pytest.mark.parametrize(
    ("response", "early", "late"),
    [
        (JoinGroupResponse(**NAMES, error_code=ErrorCode.MEMBER_ID_REQUIRED), True, True),
        (JoinGroupResponse(**NAMES, error_code=ErrorCode.NONE), False, False),
        (HeartbeatResponse(**NAMES, error_code=ErrorCode.NONE), False, True),
        (HeartbeatResponse(**NAMES, error_code=ErrorCode.REBALANCE_IN_PROGRESS), False, True),
        (SyncGroupResponse(**NAMES, error_code=ErrorCode.NONE), False, False),
    ],
)
def test_the_second_kill_is_for_a_newcomer_or_later_a_heartbeat(
    response: Response, early: bool, late: bool
) -> None:
    assert is_target(response, heartbeats=False) is early
    assert is_target(response, heartbeats=True) is late


def test_the_kills_have_to_hit() -> None:
    assert checks.killed_while_rebalancing("PreparingRebalance").ok
    assert not checks.killed_while_rebalancing("Stable").ok
    struck = Struck(batch=7, request="requests-0-1", answer="SyncGroup", freezes=3)
    assert checks.killed_before_commit(struck).ok
    assert not checks.killed_before_commit(None).ok
    twice = checks.read_answers([answer("requests-0-1"), answer("requests-0-1")])
    once = checks.read_answers([answer("requests-0-1")])
    assert checks.ran_again(struck, twice, last_commit=7).ok
    assert not checks.ran_again(struck, once, last_commit=7).ok
    assert not checks.ran_again(struck, twice, last_commit=6).ok
    assert not checks.ran_again(None, twice, last_commit=7).ok


def test_stable_means_now_and_with_exactly_these_members() -> None:
    find = stable_with(["a", "b"])
    both = stable(1, {"a": (0,), "b": (1,)}, generation=4)
    assert find([both, event(2)]) is both
    assert held(both) == {"a": [0], "b": [1]}
    assert find([both, event(2, EntryType.PREPARING_REBALANCE, to_state="PreparingRebalance")]) is None
    assert find([stable(1, {"a": (0,)})]) is None
    assert find([]) is None


def test_the_timeline_is_in_the_order_of_time_and_names_the_consumers() -> None:
    outcome = DemoResult(
        checks=[Check("it holds", True, "found"), Check("it does not", False, "lost")],
        history=[
            CoordinatorStarted(at_ms=1_000, from_batch=0, settings={}),
            event(
                2, at_ms=3_500, member_id=f"consumer-1-{UUID}", reason=f"new member consumer-1-{UUID} joined"
            ),
            event(1, EntryType.GROUP_CREATED, at_ms=3_500, reason="first JoinGroup"),
        ],
        deeds=[Deed(3_500, "SIGKILL consumer-2")],
        counts={"records_produced": 3},
    )
    assert list(report.timeline_lines(outcome)) == [
        "     0.0 s  *** coordinator: it starts",
        "     2.5 s  *** demo: SIGKILL consumer-2",
        "     2.5 s      generation 1  GroupCreated: first JoinGroup [E4]",
        "     2.5 s      generation 1  MemberAdded consumer-1: new member consumer-1 joined [E4]",
    ]
    assert list(report.check_lines(outcome)) == [
        "  ok    it holds (found)",
        "  FAIL  it does not (lost)",
    ]
    printed = report.as_json(outcome, 1.23)
    assert (printed["ok"], printed["seconds"], printed["counts"]) == (False, 1.2, {"records_produced": 3})
    assert [entry["who"] for entry in printed["timeline"]] == ["coordinator", "demo", "group", "group"]
    assert printed["timeline"][3]["member_id"] == f"consumer-1-{UUID}"


def test_the_consumers_files_are_counted_but_not_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "consumer.jsonl"
    path.write_bytes(b'{"value":"a"}\n{"value":"b"}\n{"value":"a"}\n{"value":"c')
    assert consumed([path, tmp_path / "never-started.jsonl"]) == {"a": 2, "b": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as Spark writes it, with batches 6 and 7 planned and batch 6 committed."""
    for log in ("offsets", "commits"):
        (tmp_path / "spark" / log).mkdir(parents=True)
    for batch, ends in ((6, '{"0":10,"1":5}'), (7, '{"0":12,"1":5}')):
        (tmp_path / "spark" / "offsets" / str(batch)).write_text(
            f'v1\n{{"conf":{{}}}}\n{{"requests":{ends}}}'
        )
    (tmp_path / "spark" / "commits" / "6").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return tmp_path


@pytest.mark.parametrize(
    ("request_id", "batch"),
    [
        ("requests-0-9", None),
        ("requests-0-10", 7),
        ("requests-0-11", 7),
        ("requests-0-12", None),
        ("requests-1-4", None),
        ("requests-2-0", None),
    ],
)
def test_the_batch_of_a_request_is_found_by_its_offset(
    folder: Path, request_id: str, batch: int | None
) -> None:
    assert uncommitted_batch_of(folder, "requests", request_id) == batch


def test_a_committed_batch_is_no_target(folder: Path) -> None:
    (folder / "spark" / "commits" / "7").write_text('v1\n{"nextBatchWatermarkMs":0}')
    assert uncommitted_batch_of(folder, "requests", "requests-0-10") is None
