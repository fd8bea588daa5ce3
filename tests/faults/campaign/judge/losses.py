"""Requests that were deleted before a batch handled them: what clients saw acknowledged is stored, waits or
is reported, and nothing is acknowledged any more.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import Evidence
from tests.faults.campaign.judge.verdicts import Violation

SILENCE_S = 1.0
"""No answer comes later than this after requests are lost."""

RETRIED = (7, 14, 15, 16)
"""Errors after which a client sends its commit again, so that they decide nothing."""

Key = tuple[str, str, int]
"""Group, topic and partition."""


@dataclass(slots=True)
class Commit:
    """A commit as its client saw it. Offsets of a partition only grow, and times are monotonic.

    `is_acknowledged` is None while it is undecided: the client has no answer, or one that tells it to retry.
    """

    key: Key
    offset: int
    answered_s: float = 0.0
    is_acknowledged: bool | None = None
    sent_s: float = 0.0

    def answer(self, error: int) -> None:
        """Take the error code of the answer that the client has now."""
        self.answered_s = time.monotonic()
        if error not in RETRIED:
            self.is_acknowledged = error == 0


class ReportedOffset(Struct):
    topic: str
    partition: int
    offset: int | None


class ReportedGroup(Struct):
    group_id: str
    requests: int
    offsets: list[ReportedOffset]


class Report(Struct):
    """The file `lost-requests.json`."""

    requests: int = 0
    groups: list[ReportedGroup] = []

    @property
    def offsets(self) -> dict[Key, int | None]:
        """The last lost commit of each partition, None if it is not known."""
        return {
            (group.group_id, one.topic, one.partition): one.offset
            for group in self.groups
            for one in group.offsets
        }


@dataclass(frozen=True)
class Loss:
    """One loss of requests, with all that the judge knows of it.

    `stored` has the offset of each partition on the offsets topic, `waiting` the greatest one on the requests
    topic. Requests were lost at `lost_s`. Up to `stalled_s` passed between two looks of the judge's own
    thread, so a slow machine may have held up an answer for as long.
    """

    commits: Sequence[Commit]
    stored: Mapping[Key, int]
    waiting: Mapping[Key, int]
    report: Report
    lost_s: float
    stalled_s: float = 0.0
    at_ms: int = 0

    @property
    def silence_s(self) -> float:
        """The time from the loss to the last acknowledgement of a commit that no batch handled.

        What was sent after the loss is no batch's to handle. A query that has stored it reads another topic.
        """
        times = [
            commit.answered_s
            for commit in self._acknowledged()
            if commit.sent_s > self.lost_s or self.stored.get(commit.key, -1) < commit.offset
        ]
        return max([self.lost_s, *times]) - self.lost_s

    def judge(self) -> Iterator[Verdict]:
        """Yield every violation."""
        yield from self._judge_commits()
        yield from self._judge_report()
        yield from self._judge_counts()
        if self.silence_s > SILENCE_S + self.stalled_s:
            last = max(self._acknowledged(), key=lambda commit: commit.answered_s)
            yield self._wrong(
                last.key[0],
                f"a commit was acknowledged {self.silence_s:.2f} s after requests were lost, "
                f"while the machine stood still for {self.stalled_s:.2f} s at most",
            )

    def _judge_commits(self) -> Iterator[Verdict]:
        """Check that every acknowledged commit is stored, waits on the requests topic, or is reported."""
        last: dict[Key, int] = {}
        for commit in self._acknowledged():
            last[commit.key] = max(commit.offset, last.get(commit.key, -1))
        reported = self.report.offsets
        for key, offset in last.items():
            if max(self.stored.get(key, -1), self.waiting.get(key, -1)) >= offset:
                continue
            if key not in reported:
                yield self._wrong(key[0], f"{offset} of {key[1:]} was acknowledged and is lost, unreported")
            elif (named := reported[key]) is not None and named < offset:
                yield self._wrong(key[0], f"{offset} of {key[1:]} was acknowledged, {named} is reported")

    def _judge_report(self) -> Iterator[Verdict]:
        """Check that only commits that were acknowledged to a client are reported."""
        sent: dict[Key, set[int]] = {}
        for commit in self.commits:
            if commit.is_acknowledged is not False:
                sent.setdefault(commit.key, set()).add(commit.offset)
        for key, offset in self.report.offsets.items():
            if key not in sent or (offset is not None and offset not in sent[key]):
                yield self._wrong(key[0], f"{offset} of {key[1:]} is reported, and no client was told so")

    def _judge_counts(self) -> Iterator[Verdict]:
        """Check that no lost request is left out, and every group is one of the clients'."""
        groups = {commit.key[0] for commit in self.commits}
        # A request commits one offset for each of its partitions, and no other one of its group has that.
        requests = {(it.key[0], it.offset) for it in self._acknowledged() if not self._is_there(it)}
        lost = Counter(group_id for group_id, _ in requests)
        for group in self.report.groups:
            if group.group_id not in groups:
                yield self._wrong(group.group_id, f"{group.group_id!r} is reported, and has sent nothing")
            if group.requests < lost[group.group_id]:
                sentence = f"{group.requests} lost requests are reported, {lost[group.group_id]} are lost"
                yield self._wrong(group.group_id, sentence)
        total = sum(group.requests for group in self.report.groups)
        if total != self.report.requests:
            yield self._wrong("", f"{self.report.requests} requests are reported, the groups have {total}")

    def _acknowledged(self) -> list[Commit]:
        return [commit for commit in self.commits if commit.is_acknowledged]

    def _is_there(self, commit: Commit) -> bool:
        """Return True if the commit is stored, or waits on the requests topic."""
        return max(self.stored.get(commit.key, -1), self.waiting.get(commit.key, -1)) >= commit.offset

    def _wrong(self, group_id: str, sentence: str) -> Verdict:
        return Verdict(Violation.LOST, self.at_ms, group_id, sentence)


@dataclass(frozen=True)
class Ended:
    """An end of the coordinator: its exit code and its last line on standard error."""

    exit_code: int
    said: str
    at_s: float = 0.0


@dataclass(frozen=True)
class Refusal:
    """How a coordinator took the loss.

    `ends` are its own end and that of the start that followed. Each names one of `reasons`. `readiness` has
    the statuses that `/readyz` answered.
    """

    ends: Sequence[Ended]
    reasons: Iterable[str]
    readiness: Sequence[int]
    at_ms: int = 0

    def judge(self) -> Iterator[Verdict]:
        """Yield every violation."""
        if len(self.ends) < 2:
            yield self._wrong(f"the coordinator went on: {len(self.ends)} of its processes have ended")
        for end in self.ends:
            is_named = any(reason in end.said for reason in self.reasons) and "docs/recovery.md" in end.said
            if end.exit_code != 1 or not end.said.startswith("Error: ") or not is_named:
                yield self._wrong(f"exit code {end.exit_code}: {end.said!r}")
        if self.readiness[-1:] != [503]:
            yield self._wrong(f"/readyz answered {self.readiness[-5:]} last")

    def _wrong(self, sentence: str) -> Verdict:
        return Verdict(Violation.LOST, self.at_ms, "", sentence)


def read_report(path: Path) -> Report:
    """Return the report in this file, an empty one if there is none. Raises msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else Report()


def last_commits(evidence: Evidence) -> dict[Key, int]:
    """Return the greatest offset that the requests topic has for each partition."""
    found: dict[Key, int] = {}
    for request in evidence.requests:
        if request.body.type == "OffsetCommit":
            for topic in request.body.topics or []:
                for partition in topic["partitions"]:
                    key = (request.body.group_id, topic["name"], partition["partition_index"])
                    found[key] = max(partition["committed_offset"], found.get(key, -1))
    return found


def handled_ends(spark_checkpoint: Path, topic: str) -> dict[int, int]:
    """Return the offsets by partition that the last committed batch has read up to."""
    done = [int(path.name) for path in (spark_checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
    if not done:
        return {}
    _, _, *sources = (spark_checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    ends = next(found for line in sources if (found := json.loads(line)) and topic in found)[topic]
    return {int(partition): offset for partition, offset in ends.items()}
