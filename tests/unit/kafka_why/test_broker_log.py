# ruff: noqa: E501 - a broker's line is one line
"""Lines of brokers' logs, as real brokers write them: what each says, and what `why` makes of them."""

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from kafka_why.broker_log.events import events_in
from kafka_why.broker_log.group import entries_of
from kafka_why.broker_log.lines import MAX_LINE_BYTES, parse_line
from kafka_why.broker_log.merge import Merged, merge
from kafka_why.cli import main
from kafka_why.cli.why import why
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.broker_logs import read_broker_logs
from kafka_why.why.report import report
from kafka_why.why.text import report_text
from kafka_why.wording import Clock
from tests.harness.commands import invoke
from tests.harness.observed_epochs import Said
from tests.harness.observed_log import Watched, classic_member, committed, generation

G = "orders, old)"  # ids may hold what the messages have
AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
SCALA, JAVA = "[GroupCoordinator 1]: ", "[GroupCoordinator id=1 topic=__consumer_offsets partition=7] "
ADDED, REMOVED, REPLACED = EntryType.MEMBER_ADDED, EntryType.MEMBER_REMOVED, EntryType.MEMBER_REPLACED
REJOINED = EntryType.MEMBER_REJOINED


@pytest.mark.parametrize(
    ("message", "type_", "expected"),
    [
        # Of a member, 2.4 to 2.8, 3.0 to 4.0, and in Java.
        (f"Member[group.instance.id None, member.id m-1] in group {G} has left, removing it from the group", REMOVED, {"rule": "L6", "group_instance_id": None}),
        (f"Member MemberMetadata(memberId=m-1, groupInstanceId=Some(i), clientId=c, clientHost=/10.0.0.1, sessionTimeoutMs=8000, supportedProtocols=List(range)) has left group {G} through explicit `LeaveGroup`; client reason: bye (now); ok", REMOVED, {"client_id": "c", "client_host": "/10.0.0.1", "group_instance_id": "i", "client_reason": "bye (now); ok"}),
        (f"[Group {G}] Member m-1 has left group through explicit `LeaveGroup` request; client reason: not provided", REMOVED, {"client_reason": None}),
        (f"Member m-1 in group {G} has failed, removing it from the group.", REMOVED, {"rule": "T5"}),
        (f"Adding new static member Some(i) to group {G} with member id m-1.", ADDED, {"group_instance_id": "i"}),
        (f"Static member with groupInstanceId=i and unknown member id joins group {G} in Stable state. Created a new member id m-1 for this member and add to the group.", ADDED, {"group_instance_id": "i"}),
        (f"Dynamic member with unknown member id joins group {G} in state Empty. Created a new member id m-1 and added the member to the group.", ADDED, {}),
        (f"Pending dynamic member with id m-1 joins group {G} in Stable state. Adding to the group now.", ADDED, {}),
        (f"Dynamic member with unknown member id joins group {G} in Stable state. Created a new member id m-1 and requesting the member to rejoin with this id.", EntryType.MEMBER_ID_ASSIGNED, {}),
        (f"Static member Some(i) of group {G} with unknown member id rejoins, assigning new member id m-1, while old member id m-0 will be removed.", REPLACED, {"replaced_member_id": "m-0"}),
        (f"Group {G} removed dynamic members who haven't joined: Set(m-1)", REMOVED, {"rule": "C1"}),
        (f"Pending member m-1 in group {G} has been removed after session timeout expiration.", EntryType.PENDING_MEMBER_REMOVED, {}),
        # Of groups with epochs.
        (f"[GroupId {G}] Member m-1 joins the share group using the share protocol.", ADDED, {"group_type": "share"}),
        (f"[GroupId {G}][MemberId m-1] Member joins the streams group.", ADDED, {"group_type": "streams"}),
        (f"[GroupId {G}] Static member m-0 with instance id i re-joins the consumer group using the consumer protocol. Created a new member m-1 to replace the existing member m-0.", REPLACED, {"replaced_member_id": "m-0", "group_instance_id": "i"}),
        (f"[GroupId {G}] Static member m-1 with instance id i temporarily left the consumer group.", EntryType.MEMBER_LEFT_TEMPORARILY, {}),
        (f"[GroupId {G}] Dynamic member m-1 has left group through explicit `LeaveGroup` request; client reason: the consumer is being closed", REMOVED, {"client_reason": "the consumer is being closed"}),
        (f"[GroupId {G}] Streams member m-1 fenced from the group because the member session expired..", REMOVED, {"rule": "TM1"}),
        (f"[GroupId {G}] Member m-1 fenced from the group because it failed to transition from epoch 3 within 45000ms.", REMOVED, {"rule": "TM3"}),
        (f"[GroupId {G}] Member m-1 updated its subscribed topics to: [a, b].", REJOINED, {}),
    ],
)  # fmt: skip
def test_member_message_of_the_broker_log_is_parsed(
    message: str, type_: EntryType, expected: dict[str, object]
) -> None:
    (event,) = events_in(message)
    assert (event.type, event.group_id, event.member_id) == (type_, G, "m-1")
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("reason", "causes", "words", "client"),
    [
        ("Adding new member m with group instanceid None", [(ADDED, "m")], None, None),
        ("Adding new member m with group instance id i; client reason: rebalance failed due to X", [(ADDED, "m")], "Adding new member m with group instance id i", "rebalance failed due to X"),
        ("Adding new member m with group instance id null; client reason: need to re-join with the given member-id: m", [(ADDED, "m")], "Adding new member m with group instance id null", None),
        ("Leader m re-joining group during Stable; client reason: a) (reason: b); c", [(REJOINED, "m")], "Leader m re-joining group during Stable", "a) (reason: b); c"),
        ("Updating metadata for member m during CompletingRebalance", [(REJOINED, "m")], None, None),
        ("Updating metadata for static member m with instance id Some(i)", [(REPLACED, "m")], None, None),
        ("removing member m on LeaveGroup", [(REMOVED, "m")], None, None),
        ("explicit `LeaveGroup` request for (m, n) members.", [(REMOVED, "m"), (REMOVED, "n")], None, None),
        ("removing member m on heartbeat expiration.", [(REMOVED, "m")], None, None),
        ("Removing Set(m, n) on pending sync request expiration", [(REMOVED, "m"), (REMOVED, "n")], None, None),
        ("Error COORDINATOR_NOT_AVAILABLE when storing group assignmentduring SyncGroup (member: m)", [], None, None),
        ("Freshly-loaded group g (size 9) is over capacity 5.", [], None, None),
        ("what no version says", [], None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("frame", ["(__consumer_offsets-7) (reason: {})", "(reason: {})."])
def test_rebalance_reason_is_read_from_a_broker_log_line(
    frame: str, reason: str, causes: list[tuple[EntryType, str]], words: str | None, client: str | None
) -> None:
    begins = f"Preparing to rebalance group {G} in state PreparingRebalance with old generation 4 "
    (event,) = events_in(begins + frame.format(reason))
    assert (event.group_id, event.generation) == (G, 4)
    assert [(it.type, it.member_id) for it in event.causes] == causes
    assert (event.reason, event.client_reason) == (words or reason, client)


MESSAGE = "[GroupCoordinator 1]: Stabilized group g generation 1 (__consumer_offsets-7) with 2 members"
LOGGER = "kafka.coordinator.group.GroupCoordinator"
BARE = f"[2024-05-01 14:00:00,123] INFO {MESSAGE} ({LOGGER})"


@pytest.mark.parametrize(
    ("line", "ms", "has_zone"),
    [
        (BARE, 123, False),
        (f"2024-05-01 14:00:00,123 INFO {MESSAGE} ({LOGGER}) [executor-1]", 123, False),
        (f"2024-05-01 14:00:00 INFO  [executor-1] GroupCoordinator:66 - {MESSAGE}", 0, False),
        (f"kafka-1  | {BARE}", 123, False),
        (f"2024-05-01T12:00:00.120456Z stdout F {BARE}", 120, True),
        (json.dumps({"log": f"{BARE}\n", "stream": "stdout", "time": "2024-05-01T12:00:00.125Z"}), 125, True),
        (json.dumps({"@timestamp": "2024-05-01T12:00:00.123Z", "log.logger": LOGGER, "message": MESSAGE}), 123, True),
        ("kafka | " + json.dumps({"instant": {"epochSecond": AT_MS // 1000, "nanoOfSecond": 123_000_000}, "loggerName": LOGGER, "message": MESSAGE}), 123, True),
        (json.dumps({"log": json.dumps({"@timestamp": "2024-05-01T14:00:00.123+0200", "message": MESSAGE})}), 123, True),
        (json.dumps({"message": BARE, "timestamp": AT_MS + 7}), 7, True),
    ],
)  # fmt: skip
def test_broker_log_line_is_read_in_every_layout(line: str, ms: int, has_zone: bool) -> None:
    """The broker's local time is 2 h ahead of UTC."""
    read = parse_line(
        line.encode() + b"\r\n",
        lambda at: int((at - timedelta(hours=2)).replace(tzinfo=UTC).timestamp() * 1000),
    )
    assert read is not None
    assert (read.at_ms, read.has_zone) == (AT_MS + ms, has_zone)
    (event,) = events_in(read.message)
    assert (event.group_id, event.generation, event.members) == ("g", 1, 2)


def in_file(folder: Path, messages: Sequence[str], prefix: str, name: str = "server.log") -> str:
    """Write a log with a message a second, and return its path."""
    lines = [
        f"[{AT + timedelta(seconds=n):%Y-%m-%d %H:%M:%S},000] INFO {prefix}{it} ({LOGGER})"
        for n, it in enumerate(messages)
    ]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def of_scala() -> list[str]:
    """Return the log of two joins, an expiry and a leave, as Kafka 3.0 to 4.0 write it."""
    begins = "Preparing to rebalance group g in state PreparingRebalance with old generation"
    return [
        f"{begins} 0 (__consumer_offsets-7) (reason: Adding new member a-1 with group instance id None; client reason: not provided)",
        "Stabilized group g generation 1 (__consumer_offsets-7) with 1 members",
        "Assignment received from leader a-1 for group g for generation 1. The group has 1 members, 0 of which are static.",
        "Member b-1 in group other has failed, removing it from the group",
        f"{begins} 1 (__consumer_offsets-7) (reason: Adding new member b-1 with group instance id None; client reason: not provided)",
        "Dynamic member with unknown member id joins group g in PreparingRebalance state. Created a new member id c-1 and request the member to rejoin with this id.",
        "Stabilized group g generation 2 (__consumer_offsets-7) with 3 members",
        "Assignment received from leader a-1 for group g for generation 2. The group has 3 members, 0 of which are static.",
        "Member b-1 in group g has failed, removing it from the group",
        f"{begins} 2 (__consumer_offsets-7) (reason: removing member b-1 on heartbeat expiration)",
        "Group g removed dynamic members who haven't joined: Set(c-1)",
        "Stabilized group g generation 3 (__consumer_offsets-7) with 1 members",
        "Assignment received from leader a-1 for group g for generation 3. The group has 1 members, 0 of which are static.",
        f"{begins} 3 (__consumer_offsets-7) (reason: Removing member a-1 on LeaveGroup; client reason: bye)",
        "Group g with generation 4 is now empty (__consumer_offsets-7)",
        "Member MemberMetadata(memberId=a-1, groupInstanceId=None, clientId=a, clientHost=/h, sessionTimeoutMs=1) has left group g through explicit `LeaveGroup`; client reason: bye",
    ]  # fmt: skip


def test_classic_group_is_explained_by_the_broker_log_alone(tmp_path: Path) -> None:
    log = in_file(tmp_path, of_scala(), SCALA)
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(Path(log).read_bytes()))
    told = invoke(
        why, ["g", "--broker-log", str(tmp_path / "old.log.gz"), "--log-timezone", "+00:00", "-o", "json"]
    )
    report = json.loads(told.stdout)
    rebalances = report["rebalances"]
    assert [r["cause"]["kind"] for r in rebalances] == [
        *("member joined", "member joined", "session timeout", "member left")
    ]
    assert [r["cause"]["member_ids"] for r in rebalances] == [["a-1"], ["b-1"], ["b-1"], ["a-1"]]
    assert [r["began_ms"] - AT_MS for r in rebalances] == [0, 4_000, 9_000, 13_000]
    assert rebalances[1]["members"] == ["a-1", "b-1", "c-1"], "the count shows that the new id joined"
    assert [gone["member_id"] for gone in rebalances[2]["removed"]] == ["b-1", "c-1"]
    assert (rebalances[3]["cause"]["client_reason"], rebalances[3]["cause"]["client_id"]) == ("bye", "a")
    assert rebalances[3]["cause"]["trigger"] == "old.log.gz:14"
    assert (report["state"], report["members"], report["generation"]) == ("Empty", [], 4)
    text = invoke(why, ["g", "--broker-log", log]).stdout
    assert "session timeout: b" in text
    assert "times in the log have no time zone: assumed to be this machine's" in text


def test_members_without_a_broker_log_line_are_counted(tmp_path: Path) -> None:
    later = [*of_scala()[8:10], "Stabilized group g generation 3 (__consumer_offsets-7) with 5 members"]
    told = invoke(why, ["g", "--broker-log", in_file(tmp_path, later, SCALA)])
    assert "generation 3, 5 members" in told.stdout.splitlines()[0]


def test_broker_log_shows_epochs_that_no_line_announces(tmp_path: Path) -> None:
    lines = [
        "[GroupId g] Member a joins the share group using the share protocol.",
        "[GroupId g] Member a updated its subscribed topics to: [t].",
        "[GroupId g] Bumped group epoch to 1.",
        "[GroupId g] Computed a new target assignment for epoch 1 with 'x.SimpleAssignor@2' assignor in 1ms.",
        "[GroupId g] Member a new assignment state: epoch=1, previousEpoch=0, state=STABLE, assignedPartitions=[].",
        "[GroupId g] Member b joins the share group using the share protocol.",
        "[GroupId g] Bumped group epoch to 2.",
        "[GroupId g] Computed a new target assignment for epoch 2 with 'simple' assignor in 1ms.",
        "[GroupId g] Member b fenced from the group because the member session expired.",
        "[GroupId g] Computed a new target assignment for epoch 3 with 'simple' assignor in 1ms.",
        "[GroupId g] Computed new metadata hash: 77.",
        "[GroupId g] Bumped group epoch to 4 with metadata hash 77.",
        "[GroupId g] Computed a new target assignment for epoch 4 with 'simple' assignor in 1ms.",
        "[GroupId g] Member a left the share group.",
    ]
    report = json.loads(
        invoke(why, ["g", "--broker-log", in_file(tmp_path, lines, JAVA), "-o", "json"]).stdout
    )
    assert [(r["cause"]["kind"], r["generation_to"]) for r in report["rebalances"]] == [
        ("member joined", 1),
        ("member joined", 2),
        ("session timeout", 3),
        ("topics changed", 4),
        ("member left", 5),
    ]
    assert (report["state"], report["members"], report["group_type"]) == ("Empty", [], "share")


def test_groups_of_several_broker_logs_are_listed_with_causes(tmp_path: Path) -> None:
    logs = [
        in_file(tmp_path, of_scala(), SCALA),
        in_file(tmp_path, ["x", "[GroupId e] Bumped group epoch to 2."], JAVA, "2.log"),
    ]
    broken = b"\xff\xfe[GroupCoordinator 1]: Group g with generation 9 is now empty\n" + b"x[Group" * 99_999
    Path(logs[1]).write_bytes(Path(logs[1]).read_bytes() + broken)
    told = invoke(why, [word for log in logs for word in ("--broker-log", log)])
    assert [line.split()[:2] for line in told.stdout.splitlines()] == [
        ["GROUP", "REBALANCES"],
        ["g", "4"],
        ["e", "1"],
        ["other", "0"],
    ]
    assert "2 x member joined, 1 x session timeout, 1 x member left" in told.stdout
    assert "2 lines of group coordinators cannot be parsed and were skipped" in told.stderr
    unknown = invoke(main, ["why", "f", "--broker-log", logs[0]])
    assert (unknown.exit_code, "no line about a rebalance of group f" in unknown.stderr) == (1, True)


def test_broker_log_lines_of_any_length_are_read_in_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"x" * (3 * MAX_LINE_BYTES) + b"\n" + Path(in_file(tmp_path, of_scala(), SCALA, "s")).read_bytes()
    )
    logs = read_broker_logs([str(log)], "g", UTC)
    assert (logs.lines, logs.events[0].place) == (17, "server.log:2")


def records(*commits: Said) -> list[HistoryEntry]:
    """Return what the records of the same group say, by the same clock."""
    a, b, c = (classic_member(name, n) for n, name in enumerate("abc"))
    generations = [
        generation(1, a, since_ms=AT_MS + 1_000),
        generation(2, a, b, c, since_ms=AT_MS + 6_000),
        generation(3, a, since_ms=AT_MS + 11_000),
        generation(4, since_ms=AT_MS + 14_000),
    ]
    said = [*commits, *(Said((it.since_ms or 0) + 500, "g", it) for it in generations)]
    return Watched().take(sorted(said, key=lambda it: it.at_ms)).of("g")


def merged(tmp_path: Path, messages: Sequence[str]) -> Merged:
    logs = read_broker_logs([in_file(tmp_path, messages, SCALA)], "g", UTC)
    return merge(records(), entries_of(logs.events).entries)


def test_broker_log_adds_causes_that_the_records_lack(tmp_path: Path) -> None:
    both = merged(tmp_path, of_scala())
    begins = [it for it in both.entries if it.type is EntryType.PREPARING_REBALANCE]
    assert [(it.at_ms - AT_MS, it.within_ms) for it in begins] == [(n, 0) for n in (0, 4_000, 9_000, 13_000)]
    expired = next(it for it in both.entries if it.rule == "T5")
    assert (expired.member_id, expired.client_host) == ("b-1", "/10.0.0.1")
    assert [it.seq for it in both.entries] == list(range(1, len(both.entries) + 1))
    assert both.notes == ["the broker log explains 4 of 4 changes in the records"]


def test_removed_member_shows_its_last_commit_and_the_brokers_reason(tmp_path: Path) -> None:
    """The commit's age is given for the time at which the broker removed the member, also in the report."""
    logs = read_broker_logs([in_file(tmp_path, of_scala(), SCALA)], "g", UTC)
    committed_ms = AT_MS + 7_500
    both = merge(
        records(Said(committed_ms, "g", committed(1, 5, committed_ms))), entries_of(logs.events).entries
    ).entries
    clue = "; the last commit of its partitions was"
    expired = next(it for it in both if it.rule == "T5")
    assert (expired.at_ms - AT_MS, expired.reason.endswith(f"{clue} 0.5 s before")) == (8_000, True)
    found = report_text(report("g", both, AT_MS + 20_000), Clock(UTC))
    assert f"removing member b-1 on heartbeat expiration{clue} 1.5 s before" in found


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        (
            ("b-1 on heartbeat", "a-1 on heartbeat"),
            "generation 3: a-1 was removed in the log, but is in the record",
        ),
        (("with 3 members", "with 2 members"), "generation 2: 2 members in the log, 3 in the record"),
        (("g generation 3", "g generation 9"), "the log has generation 9, but no record of it is left"),
    ],
)
def test_contradiction_between_broker_log_and_records_is_noted(
    tmp_path: Path, changed: tuple[str, str], note: str
) -> None:
    both = merged(tmp_path, [message.replace(*changed) for message in of_scala()])
    assert any(text.startswith("CONTRADICTION") and note in text for text in both.notes), both.notes


def test_wrong_time_zone_of_a_broker_log_is_noted(tmp_path: Path) -> None:
    zone = timezone(timedelta(hours=1))
    logs = read_broker_logs([in_file(tmp_path, of_scala(), SCALA)], "g", zone)
    both = merge(records(), entries_of(logs.events).entries)
    assert both.entries == merged(tmp_path, of_scala()).entries
    assert "CONTRADICTION: the log's times are 3600 s behind the records'" in both.notes[-1]
