"""The judge of lost requests: it accepts a loss that was handled correctly, and finds each planted bug."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.faults.campaign.judge.log_start import Look, lost_s, stalled_s
from tests.faults.campaign.judge.losses import (
    Commit,
    Ended,
    Key,
    Loss,
    Refusal,
    Report,
    ReportedGroup,
    ReportedOffset,
    handled_ends,
    read_report,
)
from tests.faults.campaign.judge.verdicts import Violation

LOST_S = 100.0
STORED, WAITING, GONE = (("stored", "orders", 0), ("waiting", "orders", 1), ("gone", "orders", 2))
REASONS = ("were deleted before they were handled",)
SAID = "Error: records were deleted before they were handled: r[0] 3 to 9 (docs/recovery.md)"


def acknowledged(key: Key, offset: int, at_s: float) -> Commit:
    return Commit(key, offset, at_s, is_acknowledged=True)


def reported(offset: int | None, requests: int = 2, key: Key = GONE) -> Report:
    """Return a report of one group and partition."""
    group = ReportedGroup(key[0], requests, [ReportedOffset(key[1], key[2], offset)])
    return Report(requests=requests, groups=[group])


def reported_beside() -> Report:
    """Return a report that also names a group without clients."""
    groups = [*reported(3).groups, ReportedGroup("other", 1, [])]
    return msgspec.structs.replace(reported(3), requests=3, groups=groups)


def sound(last_s: float = LOST_S + 0.25) -> Loss:
    """Return a correct loss: one commit is stored, another waits, two of a third group are reported."""
    commits = [
        acknowledged(STORED, 7, LOST_S - 2),
        acknowledged(WAITING, 4, LOST_S - 1),
        acknowledged(GONE, 1, LOST_S - 2),
        acknowledged(GONE, 2, LOST_S - 1),
        acknowledged(GONE, 3, last_s),
        Commit(GONE, 4, LOST_S + 3, is_acknowledged=False),
        Commit(GONE, 5),
    ]
    return Loss(commits, {STORED: 7, GONE: 1}, {WAITING: 4}, reported(3), LOST_S)


def of_two_partitions() -> Loss:
    """Return a loss whose requests have committed another partition, too."""
    loss, other = sound(), (GONE[0], GONE[1], 9)
    commits = [acknowledged(other, it.offset, it.answered_s) for it in loss.commits if it.key == GONE][:3]
    report = reported(3)
    report.groups[0].offsets.append(ReportedOffset("orders", 9, 3))
    return replace(loss, commits=[*loss.commits, *commits], stored={**loss.stored, other: 1}, report=report)


def handled_later() -> Loss:
    """Return a loss after which the query has read a later commit, from another topic."""
    loss = sound()
    late = Commit(STORED, 8, LOST_S + 1.5, is_acknowledged=True, sent_s=LOST_S + 1.25)
    return replace(loss, commits=[*loss.commits, late], stored={**loss.stored, STORED: 8})


def violations(loss: Loss) -> list[str]:
    verdicts = list(loss.judge())
    assert {verdict.violation for verdict in verdicts} <= {Violation.LOST}
    return [verdict.sentence for verdict in verdicts]


def test_loss_judge_accepts_a_consistent_loss() -> None:
    assert violations(sound()) == []
    assert sound().silence_s == 0.25


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        (replace(sound(), report=Report()), "3 of ('orders', 2) was acknowledged and is lost, unreported"),
        (replace(sound(), report=reported(2)), "3 of ('orders', 2) was acknowledged, 2 is reported"),
        (replace(sound(), waiting={}), "4 of ('orders', 1) was acknowledged and is lost, unreported"),
        (replace(sound(), stored={STORED: 6, GONE: 1}), "7 of ('orders', 0) was acknowledged and is lost"),
        (sound(last_s=LOST_S + 1.5), "a commit was acknowledged 1.50 s after requests were lost"),
        (handled_later(), "a commit was acknowledged 1.50 s after requests were lost"),
        (replace(sound(), report=reported(9)), "9 of ('orders', 2) is reported, and no client was told so"),
        (replace(sound(), report=reported(4)), "4 of ('orders', 2) is reported, and no client was told so"),
        (replace(sound(), report=reported_beside()), "'other' is reported, and has sent nothing"),
        (replace(sound(), report=reported(3, requests=1)), "1 lost requests are reported, 2 are lost"),
        (
            replace(sound(), report=msgspec.structs.replace(reported(3), requests=3)),
            "3 requests are reported, the groups have 2",
        ),
    ],
    ids=[
        "acknowledged and unreported",
        "reported with an earlier offset",
        "no longer on the requests topic",
        "not on the offsets topic",
        "acknowledged 1.5 s later",
        "sent after the loss and stored",
        "reported and never sent",
        "reported and refused",
        "a group that nobody has",
        "a lost request that is not counted",
        "a sum that is wrong",
    ],
)
def test_loss_judge_catches_each_planted_bug(loss: Loss, wrong: str) -> None:
    (sentence,) = violations(loss)
    assert sentence.startswith(wrong)


@pytest.mark.parametrize(
    "loss",
    [
        replace(sound(), report=reported(None)),
        replace(sound(), commits=[*sound().commits, acknowledged(STORED, 7, LOST_S + 5)]),
        replace(sound(last_s=LOST_S + 1.5), stalled_s=0.6),
        replace(sound(), report=reported(5, requests=3)),
        of_two_partitions(),
    ],
    ids=[
        "offset not known",
        "late answer to what is stored",
        "slow machine",
        "answer that nobody received",
        "two partitions of one request",
    ],
)
def test_loss_judge_accepts_an_allowed_loss(loss: Loss) -> None:
    assert violations(loss) == []


def test_judge_counts_no_loss_for_a_refusal_with_a_clear_reason() -> None:
    assert list(Refusal([Ended(1, SAID)] * 2, REASONS, [200, 503]).judge()) == []


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal([], REASONS, [503]),
        Refusal([Ended(1, SAID)], REASONS, [503]),
        Refusal([Ended(1, SAID), Ended(0, SAID)], REASONS, [503]),
        Refusal([Ended(1, SAID), Ended(1, "KeyError: 3")], REASONS, [503]),
        Refusal([Ended(1, SAID), Ended(1, SAID.replace("docs/recovery.md", ""))], REASONS, [503]),
        Refusal([Ended(1, SAID)] * 2, ("belongs to another topic",), [503]),
        Refusal([Ended(1, SAID)] * 2, REASONS, [503, 200]),
        Refusal([Ended(1, SAID)] * 2, REASONS, []),
    ],
    ids=[
        "went on",
        "started again",
        "another exit code",
        "no sentence",
        "no advice",
        "another reason",
        "ready to the end",
        "never asked",
    ],
)
def test_judge_catches_a_refusal_without_a_clear_reason(refusal: Refusal) -> None:
    assert {verdict.violation for verdict in refusal.judge()} == {Violation.LOST}


def test_log_beginning_after_the_handled_offset_is_a_loss() -> None:
    looks = [Look(1.0, "id", {0: 0, 1: 0}), Look(2.0, "id", {0: 5, 1: 0}), Look(3.5, "id", {0: 6, 1: 0})]
    assert lost_s(looks, {0: 5, 1: 9}) == 3.5
    assert lost_s(looks, {0: 6, 1: 9}) is None
    assert lost_s([*looks, Look(4.0, "", {})], {0: 6, 1: 9}) == 4.0
    assert stalled_s(looks, 1.5, 3.0) == 1.0
    assert stalled_s(looks, 1.5, 1.5) == 0.0


def test_report_and_batch_log_are_parsed(tmp_path: Path) -> None:
    """The coordinator's report, and Spark's log of batches."""
    assert read_report(tmp_path / "none.json") == Report()
    (tmp_path / "report.json").write_text(
        '{"version": 1, "at_ms": 5, "reason": "gone", "requests": 1, '
        '"deleted": [{"partition": 0, "from_offset": 12, "to_offset": null}], "groups": [{'
        '"group_id": "gone", "requests": 1, "offsets": [{"topic": "orders", "partition": 2, "offset": 3}]}]}'
    )
    assert read_report(tmp_path / "report.json").offsets == {GONE: 3}
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for batch in (9, 10, 11):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"requests":{{"0":{batch}}}}}')
    for name in ("9", "10", ".11.crc"):
        (tmp_path / "commits" / name).touch()
    assert handled_ends(tmp_path, "requests") == {0: 10}
