"""What a replay makes of a log: outages, late requests, lost beginnings, ends, moments and steps."""

import dataclasses
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from checkpoints import codec
from checkpoints.export_file import ExportedGroup
from cli.replay import replay as command
from insight.replay.judge import judge
from insight.replay.moment import moment_text
from insight.replay.recording import (
    Answer,
    Event,
    Letter,
    Line,
    LogClock,
    LogRequest,
    StartGroup,
)
from insight.replay.recording_file import RecordingError, RecordingFile, write_recording
from insight.replay.replay import Until
from insight.replay.replay import replay as replay_group
from insight.replay.steps import Steps
from insight.replay.text import verdict_text
from insight.replay.verdict import How, What
from insight.why.clock import Clock
from records.codec import Refusal, encode
from records.pack import pack, pack_key, slot_of
from state.config import CoordinatorConfig
from state.configs import Configs
from state.kafka.classic_group import ClassicGroup
from tests.harness.coordinated_log import CoordinatedLog
from tests.harness.recordings import Lines
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join, leave, txn_commit

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
CLOCK = Clock(UTC)


def a_member_expires() -> CoordinatedLog:
    """A member joins group a at T0, keeps its session once, and expires at T0 + 15 s."""
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, *log.clock(T0 + 100, T0)])
    world.run([log.request(T0 + 5_000, heartbeat("a", member_id)), *log.clock(T0 + 20_000, T0 + 19_000)])
    world.run(log.clock(T0 + 20_100, T0 + 20_000))
    return world


def test_a_recording_has_only_the_clock_records_that_matter() -> None:
    lines = a_member_expires().recording().lines
    clocks = [line.time_ms - T0 for line in lines if isinstance(line, LogClock)]
    assert clocks == [0, 20_000, 20_000], "between two requests, and at the end of each partition"
    assert sum(isinstance(line, LogRequest) for line in lines) == 3


def test_sessions_begin_anew_after_an_outage() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, *log.clock(T0 + 1_000, T0)])
    world.without_coordinator(T0 + 60_000)
    world.run([log.request(T0 + 30_000, heartbeat("a", member_id)), *log.clock(T0 + 61_000, T0 + 60_900)])
    world.run(log.clock(T0 + 62_000, T0 + 61_900))
    recording = world.recording()
    assert judge(recording).differences == []
    entries = replay_group(recording, "a").entries
    assert [entry.at_ms - T0 for entry in entries] == [0, 0, 0, 60_000, 60_000]
    forgotten = Lines(replace(recording.header, outages=[]), recording.lines)
    assert not judge(forgotten).is_identical


def test_a_takeover_may_be_written_with_the_next_call_of_its_group() -> None:
    """Spark calls a group for a request or a deadline, and no session ends with the outage."""
    log, world = Log(), CoordinatedLog(CONFIG)
    world.run([*log.stable_member(T0, "a")[0], *log.clock(T0 + 100, T0)])
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
        x for x in world.recording().lines if not isinstance(x, Event) or b"TakenOver" not in x.value.get()
    ]
    assert not judge(Lines(world.header(), missing)).is_identical


def test_requests_and_deadlines_until_a_start_are_under_the_configuration_before() -> None:
    """In the first batch of the new configuration, too: none had planned them."""
    log, world = Log(), CoordinatedLog(CONFIG)
    world.run([*log.stable_member(T0, "a")[0], *log.clock(T0 + 5_000, T0)])
    world.configure(dataclasses.replace(CONFIG, group_min_session_timeout_ms=20_000))
    both = [log.request(at_ms, join("b", f"c{at_ms}")) for at_ms in (T0 + 5_000, T0 + 5_001)]
    world.run([*both, *log.clock(T0 + 30_000, T0 + 30_000)])
    world.run([])
    recording = world.recording()
    assert judge(recording).is_identical
    errors = [sent.value for entry in replay_group(recording, "b").entries for sent in entry.sent]
    assert [b'"error_code":26' in value for value in errors[:2]] == [False, True]


def test_a_record_that_was_skipped_is_skipped() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    world.run([*log.stable_member(T0, "a")[0], *log.clock(T0, T0)])
    skipped = log.request(T0 + 1, join("a", "poison"))
    world.configure(CONFIG, skip=[skipped.id])
    world.run([skipped, *log.clock(T0 + 2, T0 + 2)])
    recording = world.recording()
    assert judge(recording).is_identical
    (letter,) = (line.value.get() for line in recording.outputs() if isinstance(line, Letter))
    assert b"SKIPPED" in letter
    (first, _) = recording.header.epochs
    assert not judge(Lines(replace(recording.header, epochs=[first]), recording.lines)).is_identical


def test_a_request_behind_a_deadline_that_fired_is_applied_as_it_was() -> None:
    """The broker's clock stepped back, so the log alone does not say that the session had ended."""
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, *log.clock(T0 + 20_000, T0 + 20_000)])
    world.run([])
    world.run([log.request(T0 + 5_000, heartbeat("a", member_id))])
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert verdict.late == 1
    assert "1 request applied late" in verdict_text(verdict, world.header())


def lost_beginning(world: CoordinatedLog, offset: int) -> Lines:
    """The recording after retention has deleted the requests before an offset."""
    recording = world.recording()
    header = replace(recording.header, begins=dict.fromkeys(recording.header.begins, offset), is_first=[])
    kept = [x for x in recording.lines if not isinstance(x, LogRequest | LogClock) or x.offset >= offset]
    return Lines(header, kept)


def two_lives() -> tuple[CoordinatedLog, int]:
    """A group that ends and is created anew. Returns the offset of the request that creates it anew."""
    log, world = Log(), CoordinatedLog(replace_retention(CONFIG))
    joined, member_id = log.stable_member(T0, "a")
    world.run([*joined, log.request(T0 + 1_000, leave("a", member_id))])
    week_ms = 8 * 24 * 3_600_000
    world.run(log.clock(T0 + week_ms, T0 + week_ms))
    world.run([])
    again, _ = log.stable_member(T0 + week_ms + 1_000, "a")
    world.run(again)
    return world, again[0].offset


def replace_retention(config: CoordinatorConfig) -> CoordinatorConfig:
    return config.with_settings({"offsets.retention.check.interval.ms": 1_000})


def test_a_group_whose_logs_beginning_is_gone_is_judged_from_its_next_incarnation() -> None:
    world, offset = two_lives()
    assert judge(world.recording()).differences == []
    verdict = judge(lost_beginning(world, 1))
    start = verdict.starts["a"]
    assert (start.is_cut, verdict.differences) == (True, [])
    assert start.request == f"requests-{start_partition(world)}-{offset}"
    assert verdict.groups["a"].answers == 2
    assert verdict.unjudged > 0
    assert f"group a is judged from {start.request} on" in verdict_text(verdict, world.header())
    first = replay_group(lost_beginning(world, 1), "a").entries[0]
    assert first.request_id == start.request


def start_partition(world: CoordinatedLog) -> int:
    (partition,) = {record.partition for record in world.log if record.key is not None}
    return partition


def test_a_group_that_was_not_created_anew_cannot_be_judged_without_a_state(tmp_path: Path) -> None:
    world = a_member_expires()
    verdict = judge(lost_beginning(world, 2))
    assert verdict.differences == []
    assert verdict.groups.get("a") is None or verdict.groups["a"].answers == 0
    assert "group a cannot be judged" in verdict_text(verdict, world.header())
    assert verdict_text(verdict, world.header()).startswith("nothing could be judged: ")
    assert replay_group(lost_beginning(world, 2), "a").entries == []
    file = tmp_path / "file"
    write_recording(file, lost_beginning(world, 2).header, lost_beginning(world, 2).lines)
    shown = run("--group", "a", "--from", file, "--at", "2023-11-14T22:13:26Z")
    assert shown.exit_code == 1 and "group a cannot be judged" in shown.stderr


def test_a_replay_begins_with_an_exported_state() -> None:
    """The export was made after the first batch, before the heartbeat."""
    world = a_member_expires()
    early = replay_group(world.recording(), "a", Until(time_ms=T0 + 100)).group
    assert early is not None
    exported = codec.encode_group(early, None)
    lost = lost_beginning(world, 2)
    state = StartGroup(ExportedGroup("a", exported.version, exported.group))
    verdict = judge(Lines(replace(lost.header, starts_from="an export"), [state, *lost.lines]))
    assert verdict.differences == []
    assert verdict.groups["a"].answers == 1 and verdict.groups["a"].history > 0


def test_what_retention_has_deleted_of_the_outputs_is_not_missing() -> None:
    recording = a_member_expires().recording()
    without = Lines(recording.header, [x for x in recording.lines if not isinstance(x, Answer)])
    assert {d.how for d in judge(without).differences} == {How.MISSING}
    kept = {LAYOUT.responses_topic: {1: T0 + 10_000}}
    verdict = judge(Lines(replace(recording.header, kept_since_ms=kept), without.lines))
    assert (verdict.differences, verdict.groups["a"].gone) == ([], 3)


def test_a_record_that_nothing_led_to_is_unexpected() -> None:
    recording = a_member_expires().recording()
    forged = next(line for line in recording.lines if isinstance(line, Event))
    text = (forged.value.text or "").replace('"seq":1,', '"seq":99,')
    other = replace(forged, offset=77, value=replace(forged.value, text=text))
    (difference,) = judge(Lines(recording.header, [*recording.lines, other])).differences
    assert (difference.what, difference.how) == (What.HISTORY, How.UNEXPECTED)
    assert difference.place == f"{forged.partition}-77"


def test_two_different_answers_to_one_request_are_a_difference() -> None:
    recording = a_member_expires().recording()
    first = next(line for line in recording.lines if isinstance(line, Answer))
    other = replace(first, value=replace(first.value, text=(first.value.text or "").replace("NONE", "")))
    twice = replace(other, value=replace(other.value, text=(first.value.text or "") + " "))
    (difference,) = judge(Lines(recording.header, [*recording.lines, twice])).differences
    assert difference.how is How.TWICE


def test_answers_out_of_order_are_a_difference() -> None:
    recording = a_member_expires().recording()
    answers = [n for n, line in enumerate(recording.lines) if isinstance(line, Answer)]
    lines = list(recording.lines)
    lines[answers[0]], lines[answers[-1]] = lines[answers[-1]], lines[answers[0]]
    assert {d.how for d in judge(Lines(recording.header, lines)).differences} == {How.OUT_OF_ORDER}


def test_only_what_was_caused_until_a_time_is_compared() -> None:
    recording = a_member_expires().recording()
    lines = [x for x in recording.lines if not isinstance(x, Event)]
    assert judge(Lines(recording.header, lines), Until(time_ms=T0 - 1)).is_identical
    assert not judge(Lines(recording.header, lines), Until(time_ms=T0)).is_identical


def test_requests_in_one_pack_are_replayed_each() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, member_id = log.stable_member(T0, "a")
    beats = [encode(heartbeat("a", member_id)), b"{}", encode(heartbeat("a", "nobody"))]
    value, key = pack(beats), pack_key(slot_of("a"))
    world.run([*joined, log.append(T0 + 1, key, value, joined[0].partition)])
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert (verdict.total("answers"), verdict.total("letters")) == (4, 1)
    assert judge(world.recording(["a"])).groups["a"].answers == 4


def test_a_refused_request_leaves_the_group_as_it_was() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    joined, _ = log.stable_member(T0, "a")
    world.run([*joined, log.append(T0 + 1, b"a", b"{", joined[0].partition)])
    replayed = replay_group(world.recording(), "a", with_states=True)
    assert isinstance(replayed.entries[-1].event, Refusal)
    assert replayed.group_after(len(replayed.entries) - 1) == replayed.group_after(len(replayed.entries) - 2)
    assert replayed.group_after(len(replayed.entries) - 1) is not None


def test_a_file_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    recording = a_member_expires().recording()
    for name in ("recording.jsonl", "recording.zst"):
        path = tmp_path / name
        assert write_recording(path, recording.header, recording.lines) == len(recording.lines)
        assert path.stat().st_mode & 0o777 == 0o600
        read = RecordingFile(path)
        assert [*read.log(), *read.outputs()] == list(recording.lines)
        assert judge(read).is_identical
    assert (tmp_path / "recording.zst").stat().st_size < (tmp_path / "recording.jsonl").stat().st_size / 2
    with pytest.raises(RecordingError, match="exists"):
        write_recording(tmp_path / "recording.zst", recording.header, [])


def test_a_file_that_was_cut_or_changed_is_refused(tmp_path: Path) -> None:
    recording = a_member_expires().recording()
    path = tmp_path / "file"
    write_recording(path, recording.header, recording.lines)
    content = path.read_bytes()
    for damaged, fault in (
        (content[: len(content) // 2], "is cut"),
        (b"".join(content.splitlines(keepends=True)[:-1]), "is cut"),
        (content.replace(b"session", b"Session", 1), "does not match its checksum"),
        (content.replace(b'{"version":1', b'{"version":9', 1), "format 9"),
        (b"not json\n", "no recording"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(RecordingError, match=fault):
            RecordingFile(path)


def test_the_group_at_a_time_has_its_members_and_timers() -> None:
    recording = a_member_expires().recording()
    alive = replay_group(recording, "a", Until(time_ms=T0 + 6_000))
    assert isinstance(alive.group, ClassicGroup)
    text = moment_text(alive, T0 + 6_000, CONFIG, CLOCK)
    assert "Group a at 2023-11-14 22:13:26.000 UTC: Stable for 6.0 s, generation 1, 1 member" in text
    assert "2023-11-14 22:13:35.000  in 9.0 s  the session of c ends" in text
    gone = replay_group(recording, "a", Until(time_ms=T0 + 15_000))
    assert "Empty for 0 ms, generation 2, 0 members" in moment_text(gone, T0 + 15_000, CONFIG, CLOCK)
    before = replay_group(recording, "a", Until(time_ms=T0 - 1))
    assert "Group a did not exist at" in moment_text(before, T0 - 1, CONFIG, CLOCK)


def test_the_group_at_a_time_has_what_is_pending_in_transactions() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    requests = [txn_commit("g", 1, 40), txn_commit("g", 2, 41)]
    world.run([*(log.request(T0 + n, request) for n, request in enumerate(requests)), *log.clock(T0 + 2, T0)])
    at = replay_group(world.recording(), "g", Until(time_ms=T0 + 1))
    assert "Pending offsets: 2 partitions in 2 transactions" in moment_text(at, T0 + 1, CONFIG, CLOCK)


def test_steps_go_forward_back_and_to_what_is_searched() -> None:
    steps = Steps(replay_group(a_member_expires().recording(), "a", with_states=True), Configs(CONFIG), CLOCK)
    assert len(steps) == 5
    steps.move(99)
    assert "heartbeat deadline of c" in steps.detail() and "Empty" in steps.group()
    steps.move(-1)
    assert "Heartbeat of c -> NONE" in steps.detail() and "Stable" in steps.group()
    assert steps.next_history(-1) and steps.at == 2
    assert steps.find("heartbeat deadline") and steps.at == 4
    assert not steps.find("nobody of this name") and steps.at == 4


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def written(path: Path, recording: Lines, lines: Iterable[Line] | None = None) -> Path:
    write_recording(path, recording.header, recording.lines if lines is None else lines)
    return path


def test_the_command_says_identical_or_shows_the_differences(tmp_path: Path) -> None:
    recording = a_member_expires().recording()
    whole = written(tmp_path / "whole", recording)
    result = run("--group", "a", "--from", whole)
    assert result.exit_code == 0
    assert result.stdout.startswith("identical: 3 answers, 8 history entries\n")
    events = [line for line in recording.lines if isinstance(line, Event)]
    less = written(tmp_path / "less", recording, [x for x in recording.lines if x is not events[-1]])
    result = run("--all", "--from", less)
    assert result.exit_code == 1
    assert result.stdout.startswith("1 difference: 1 x history entry missing")
    assert f"expected  {events[-1].value.text}" in result.stdout
    steps = run("--group", "a", "--from", whole, "--step").stdout
    assert "Heartbeat of c -> NONE" in steps and "MemberRemoved: no heartbeat" in steps
    at = run("--group", "a", "--from", whole, "--at", "2023-11-14T22:13:26Z")
    assert "Stable for 6.0 s" in at.stdout


def test_usage_errors_and_unknown_groups_are_sentences(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", a_member_expires().recording(["a"]))
    assert "takes one of these options: --group, --all" in run("--from", whole).stderr
    assert "takes one of these options: --from-topic, --from" in run("--group", "a").stderr
    unknown = run("--group", "b", "--from", whole)
    assert (unknown.exit_code, "has no group b; it has a" in unknown.stderr) == (1, True)


def test_a_refused_request_is_compared_too() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    wrong = join("a")
    record = log.request(T0, wrong)
    world.run(
        [record, log.append(T0, b"other key", encode(wrong), record.partition), log.append(T0, b"x", b"{", 0)]
    )
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert verdict.total("letters") == 2
