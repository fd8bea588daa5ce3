"""The outcome of a replay: outages, late requests, lost beginnings, ends, moments and steps."""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from checkpoints import codec
from checkpoints.sealed_file import ExportedGroup
from cli.replay import replay as command
from kafka_why.contract.codec import encode, pack, pack_key, slot_of
from kafka_why.errors import UserFacingError
from kafka_why.wording import Clock
from operations.replay.judge import judge
from operations.replay.moment import moment_text
from operations.replay.recording import (
    AnswerLine,
    ClockLine,
    EventLine,
    LetterLine,
    Line,
    RecordingFile,
    RequestLine,
    StartLine,
    write_recording,
)
from operations.replay.replay import Until
from operations.replay.replay import replay as replay_group
from operations.replay.text import DifferenceKind, verdict_text
from operations.replay.topic_contents import RecordKind
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from tests.harness.coordinated_log import CoordinatedLog
from tests.harness.recordings import Lines
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join, leave, txn_commit

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
CLOCK = Clock(UTC)


def with_member(clock_ms: int = T0 + 100) -> tuple[Log, CoordinatedLog, str]:
    """Return a coordinator whose group `a` has a member, the clock until then, and the id of the member."""
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, *log.clock(clock_ms, T0)])
    return log, world, member_id


def a_member_expires() -> CoordinatedLog:
    """Return a log: a member joins group a at T0, keeps its session once, and expires at T0 + 15 s."""
    log, world, member_id = with_member()
    world.run([log.request(T0 + 5_000, heartbeat("a", member_id)), *log.clock(T0 + 20_000, T0 + 19_000)])
    world.run(log.clock(T0 + 20_100, T0 + 20_000))
    return world


@pytest.fixture
def recording() -> Lines:
    """Return the recording of `a_member_expires`."""
    return a_member_expires().recording()


def test_replay_ignores_a_takeover_entry_that_is_not_due_yet() -> None:
    """Spark calls a group for a request or a deadline, and no session ends with the outage."""
    log, world, _ = with_member()
    world.without_coordinator(T0 + 3_000)
    world.run(log.clock(T0 + 9_000, T0 + 9_000))
    world.run([])
    assert (verdict := judge(world.recording())).is_identical
    assert verdict.total("open") > 0
    assert "that no committed batch had to write yet" in verdict_text(verdict, world.header())
    world.run(log.clock(T0 + 30_000, T0 + 30_000))
    world.run([])
    assert (verdict := judge(world.recording())).is_identical
    assert verdict.total("open") == 0
    missing = [
        x
        for x in world.recording().lines
        if not isinstance(x, EventLine) or b"TakenOver" not in x.value.get()
    ]
    assert not judge(Lines(world.header(), missing)).is_identical


def test_replay_skips_records_that_were_skipped() -> None:
    log, world, _ = with_member(T0)
    skipped = log.request(T0 + 1, join("a", "poison"))
    world.configure(CONFIG, skip=[skipped.id])
    world.run([skipped, *log.clock(T0 + 2, T0 + 2)])
    recording = world.recording()
    assert judge(recording).is_identical
    (letter,) = (line.value.get() for line in recording.outputs() if isinstance(line, LetterLine))
    assert b"SKIPPED" in letter
    (first, _) = recording.header.epochs
    assert not judge(Lines(replace(recording.header, epochs=[first]), recording.lines)).is_identical


def test_replay_applies_late_requests_in_the_recorded_order() -> None:
    """The broker's clock stepped back, so the log alone does not say that the session had ended."""
    log, world, member_id = with_member()
    world.run(log.clock(T0 + 20_000, T0 + 20_000))
    world.run([])
    world.run([log.request(T0 + 5_000, heartbeat("a", member_id))])
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert verdict.late == 1
    assert "1 request applied late" in verdict_text(verdict, world.header())


def lost_beginning(world: CoordinatedLog, offset: int) -> Lines:
    """Return the recording after retention has deleted the requests before an offset."""
    recording = world.recording()
    header = replace(recording.header, begins=dict.fromkeys(recording.header.begins, offset), is_first=[])
    kept = [x for x in recording.lines if not isinstance(x, RequestLine | ClockLine) or x.offset >= offset]
    return Lines(header, kept)


def two_lives() -> tuple[CoordinatedLog, int]:
    """Return a group that ends and is created again, and the offset of the request that creates it again."""
    log, world = Log(), CoordinatedLog(CONFIG.with_settings({"offsets.retention.check.interval.ms": 1_000}))
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, log.request(T0 + 1_000, leave("a", member_id))])
    week_ms = 8 * 24 * 3_600_000
    world.run(log.clock(T0 + week_ms, T0 + week_ms))
    world.run([])
    again, _ = log.stable_member(T0 + week_ms + 1_000, "a")
    world.run(again)
    return world, again[0].offset


def test_group_with_a_truncated_log_is_judged_from_its_next_creation_on() -> None:
    world, offset = two_lives()
    assert judge(world.recording()).differences == []
    verdict = judge(lost_beginning(world, 1))
    start = verdict.starts["a"]
    assert (start.is_cut, verdict.differences) == (True, [])
    assert start.request == f"requests-{start_partition(world)}-{offset}"
    assert verdict.groups["a"].answers == 2
    assert verdict.unjudged > 0
    assert f"group a is judged from {start.request} on" in verdict_text(verdict, world.header())
    first = replay_group(lost_beginning(world, 1), "a").steps[0]
    assert first.request_id == start.request


def start_partition(world: CoordinatedLog) -> int:
    (partition,) = {record.partition for record in world.log if record.key is not None}
    return partition


def test_group_with_a_truncated_log_cannot_be_judged_without_an_exported_state(tmp_path: Path) -> None:
    world = a_member_expires()
    verdict = judge(lost_beginning(world, 2))
    assert verdict.differences == []
    assert verdict.groups.get("a") is None or verdict.groups["a"].answers == 0
    assert "group a cannot be judged" in verdict_text(verdict, world.header())
    assert verdict_text(verdict, world.header()).startswith("nothing could be judged: ")
    assert replay_group(lost_beginning(world, 2), "a").steps == []
    file = tmp_path / "file"
    write_recording(file, lost_beginning(world, 2).header, lost_beginning(world, 2).lines)
    shown = run("--group", "a", "--from", file, "--at", "2023-11-14T22:13:26Z")
    assert shown.exit_code == 1 and "group a cannot be judged" in shown.stderr


def test_replay_can_begin_with_an_exported_state() -> None:
    """The export was made after the first batch, before the heartbeat."""
    world = a_member_expires()
    early = replay_group(world.recording(), "a", Until(time_ms=T0 + 100)).group
    assert early is not None
    exported = codec.encode_group(early, None)
    lost = lost_beginning(world, 2)
    state = StartLine(ExportedGroup("a", exported.version, exported.group))
    verdict = judge(Lines(replace(lost.header, starts_from="an export"), [state, *lost.lines]))
    assert verdict.differences == []
    assert verdict.groups["a"].answers == 1 and verdict.groups["a"].history > 0


def test_outputs_deleted_by_retention_are_not_reported_missing(recording: Lines) -> None:
    without = Lines(recording.header, [x for x in recording.lines if not isinstance(x, AnswerLine)])
    assert {d.how for d in judge(without).differences} == {DifferenceKind.MISSING}
    kept = {LAYOUT.responses_topic: {1: T0 + 10_000}}
    verdict = judge(Lines(replace(recording.header, kept_since_ms=kept), without.lines))
    assert (verdict.differences, verdict.groups["a"].gone) == ([], 3)


def forged(lines: list[Line]) -> list[Line]:
    event = next(line for line in lines if isinstance(line, EventLine))
    text = (event.value.text or "").replace('"seq":1,', '"seq":99,')
    return [*lines, replace(event, offset=77, value=replace(event.value, text=text))]


def answered_twice(lines: list[Line]) -> list[Line]:
    first = next(line for line in lines if isinstance(line, AnswerLine))
    return [*lines, replace(first, value=replace(first.value, text=f"{first.value.text} "))]


def out_of_order(lines: list[Line]) -> list[Line]:
    places = [n for n, line in enumerate(lines) if isinstance(line, AnswerLine)]
    lines[places[0]], lines[places[-1]] = lines[places[-1]], lines[places[0]]
    return lines


@pytest.mark.parametrize(
    ("tamper", "what", "how"),
    [
        (forged, RecordKind.HISTORY, DifferenceKind.UNEXPECTED),
        (answered_twice, RecordKind.ANSWER, DifferenceKind.TWICE),
        (out_of_order, RecordKind.ANSWER, DifferenceKind.OUT_OF_ORDER),
    ],
)
def test_unexpected_records_are_reported_as_differences(
    recording: Lines, tamper: Callable[[list[Line]], list[Line]], what: RecordKind, how: DifferenceKind
) -> None:
    differences = judge(Lines(recording.header, tamper([*recording.lines]))).differences
    assert {(found.what, found.how) for found in differences} == {(what, how)}


def test_each_request_of_a_pack_is_replayed() -> None:
    log, world, member_id = with_member()
    beats = [encode(heartbeat("a", member_id)), b"{}", encode(heartbeat("a", "nobody"))]
    world.run([log.append(T0 + 101, pack_key(slot_of("a")), pack(beats), start_partition(world))])
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert (verdict.total("answers"), verdict.total("letters")) == (4, 1)
    assert judge(world.recording(["a"])).groups["a"].answers == 4


def test_recording_file_is_read_back_and_private_to_its_owner(recording: Lines, tmp_path: Path) -> None:
    for name in ("recording.jsonl", "recording.zst"):
        path = tmp_path / name
        assert write_recording(path, recording.header, recording.lines) == len(recording.lines)
        assert path.stat().st_mode & 0o777 == 0o600
        read = RecordingFile(path)
        assert [*read.log(), *read.outputs()] == list(recording.lines)
        assert judge(read).is_identical
    assert (tmp_path / "recording.zst").stat().st_size < (tmp_path / "recording.jsonl").stat().st_size / 2
    with pytest.raises(UserFacingError, match="exists"):
        write_recording(tmp_path / "recording.zst", recording.header, [])


def test_recording_file_that_was_cut_or_changed_is_refused(recording: Lines, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_recording(path, recording.header, recording.lines)
    content = path.read_bytes()
    for damaged, fault in (
        (content[: len(content) // 2], "is cut"),
        (b"".join(content.splitlines(keepends=True)[:-1]), "is cut"),
        (content.replace(b"session", b"Session", 1), "does not match its checksum"),
        (content.replace(b'{"version":1', b'{"version":9', 1), "format 9"),
        (b"not json\n", "is not a recording"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserFacingError, match=fault):
            RecordingFile(path)


def test_replay_at_a_time_shows_members_and_timers_of_a_classic_group(recording: Lines) -> None:
    alive = replay_group(recording, "a", Until(time_ms=T0 + 6_000))
    assert isinstance(alive.group, ClassicGroup)
    text = moment_text(alive, T0 + 6_000, CONFIG, CLOCK)
    assert "Group a at 2023-11-14 22:13:26.000 UTC: Stable for 6.0 s, generation 1, 1 member" in text
    assert "2023-11-14 22:13:35.000  in 9.0 s  the session of c ends" in text
    gone = replay_group(recording, "a", Until(time_ms=T0 + 15_000))
    assert "Empty for 0 ms, generation 2, 0 members" in moment_text(gone, T0 + 15_000, CONFIG, CLOCK)
    before = replay_group(recording, "a", Until(time_ms=T0 - 1))
    assert "Group a did not exist at" in moment_text(before, T0 - 1, CONFIG, CLOCK)


def test_replay_at_a_time_shows_offsets_pending_in_transactions() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    requests = [txn_commit("g", 1, 40), txn_commit("g", 2, 41)]
    world.run([*(log.request(T0 + n, request) for n, request in enumerate(requests)), *log.clock(T0 + 2, T0)])
    at = replay_group(world.recording(), "g", Until(time_ms=T0 + 1))
    assert "Pending offsets: 2 partitions in 2 transactions" in moment_text(at, T0 + 1, CONFIG, CLOCK)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_replay_command_shows_the_differences(recording: Lines, tmp_path: Path) -> None:
    events = [line for line in recording.lines if isinstance(line, EventLine)]
    less = tmp_path / "less"
    write_recording(less, recording.header, [x for x in recording.lines if x is not events[-1]])
    result = run("--all", "--from", less)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 difference: 1 x history entry missing")
    assert f"expected  {events[-1].value.text}" in result.stdout


def test_replay_command_reports_wrong_usage_and_unknown_groups(tmp_path: Path) -> None:
    recording, whole = a_member_expires().recording(["a"]), tmp_path / "whole"
    write_recording(whole, recording.header, recording.lines)
    assert "takes one of these options: --group, --all" in run("--from", whole).stderr
    assert "takes one of these options: --from-topic, --from" in run("--group", "a").stderr
    unknown = run("--group", "b", "--from", whole)
    assert (unknown.exit_code, "has no group b; it has a" in unknown.stderr) == (1, True)


def test_refused_requests_are_compared() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    wrong = join("a")
    record = log.request(T0, wrong)
    world.run(
        [record, log.append(T0, b"other key", encode(wrong), record.partition), log.append(T0, b"x", b"{", 0)]
    )
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert verdict.total("letters") == 2
