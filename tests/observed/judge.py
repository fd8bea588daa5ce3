"""Compares a report on a group with the events, line by line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from msgspec.structs import replace

from kafka_why.why.model import Cause, CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.report import Report
from kafka_why.why.segments import MISSING
from tests.observed.comparison import EPOCHS, NEAR_MS, Comparison, Holdings
from tests.observed.lines import Class, Line, Source, Verdict
from tests.observed.member import HEARTBEAT_MS, SESSION_MS
from tests.observed.truth import Step, Truth

_GONE = (CauseKind.MEMBER_GONE, CauseKind.MEMBER_LEFT, CauseKind.SESSION_TIMEOUT)
_INFERRED_OF_EPOCHS = (CauseKind.TOPICS_CHANGED, CauseKind.PARTITIONS_INITIALIZED)
_DEFAULT_ASSIGNOR = "uniform"
_EXACT_ENDS = {CauseKind.MEMBER_LEFT: "left", CauseKind.SESSION_TIMEOUT: "expired"}
_FOLLOW_UPS = {CauseKind.JOINED_AGAIN}
# Our own coordinator, and a broker's log, say which member joined again, and with what.
_FOLLOW_UPS_WITH_REASONS = {CauseKind.METADATA_CHANGED, CauseKind.LEADER_REJOINED}
_COMMIT = re.compile(r"the last commit of its partitions was ([\d.]+) s before")
_EVERY_RECORD = re.compile(r"has every record since ([^;]+)")
_NO_COMMIT = "none of its partitions had a commit since it got them"
# A session begins anew with each heartbeat, and the broker looks at sessions when it has the time.
_SILENT_MS = 3_000


class Judge(Comparison):
    """Compares one report with one truth, line by line. Of steps that began before `whole_from_ms` the source
    may lack records, unless the report says that it has them.
    """

    def __init__(
        self,
        truth: Truth,
        report: Report,
        source: Source,
        *,
        whole_from_ms: int = 0,
        clients: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(truth, report, source, clients)
        self._whole_from_ms = min(whole_from_ms, _claimed_ms(report))
        self._holdings = Holdings(truth, report, source, clients)

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts for each step, then those for the whole group."""
        steps = self.truth.steps
        for place, step in enumerate(map(self._with_session, steps)):
            following = steps[place + 1].began_ms if place + 1 < len(steps) else None
            found = [
                r
                for r in self.report.rebalances
                if (place == 0 or r.began_ms >= step.began_ms)
                and (following is None or r.began_ms < following)
            ]
            before = steps[place - 1] if place else None
            if not found and self._may_miss(step, before):
                yield self.verdict(step, Line.TIME, None, f"begins at {self.report.from_ms}")
                self._holdings.skip(step)
                continue
            yield from self._of_step(step, before, found)
        yield self._end()

    def _may_miss(self, step: Step, before: Step | None) -> bool:
        """Return True if the source could not see the step. A report names its complete period."""
        if before is None and step.began_ms <= self.report.from_ms <= step.ended_ms:
            return True
        if self.source is not Source.POLLING:
            return step.began_ms < self._whole_from_ms
        # A group that changes its protocol between two polls is another one, and entries are missing.
        is_same = before is not None and before.held.keys() == step.held.keys()
        return is_same or any(note.startswith(MISSING) for note in self.report.notes)

    def _with_session(self, step: Step) -> Step:
        """Return the step with a static member's end and return, if it was away longer than its session."""
        (client,) = step.causes.get(CauseKind.STATIC_MEMBER_RETURNED) or {""}
        back_ms = [s.at_ms for s in self.truth.seen if s.client_id == client and s.at_ms > step.began_ms]
        if not back_ms or back_ms[0] - step.began_ms <= SESSION_MS - HEARTBEAT_MS:
            return step
        causes = {**step.causes, CauseKind.MEMBER_GONE: {client}, CauseKind.MEMBER_JOINED: {client}}
        return replace(step, causes=causes, gone_how="expired")

    def _of_step(self, step: Step, before: Step | None, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        is_in_time = all(step.began_ms <= r.began_ms <= step.ended_ms for r in found)
        times = [(r.began_ms, r.ended_ms) for r in found]
        yield self.verdict(
            step,
            Line.TIME,
            is_in_time and (bool(found) or step.may_rest or not step.causes),
            times,
            (step.began_ms, step.ended_ms),
        )
        if not found:
            return
        yield from self._causes(step, found)
        last = found[-1]
        yield self.verdict(
            step, Line.FORMED, self._is_generation_right(step, last), last.generation_to, step.generations
        )
        yield self._members(step, last)
        if step.held and self.truth.assignor is not None:
            told = last.protocol_name
            expected = _DEFAULT_ASSIGNOR if last.has_epochs else self.truth.assignor
            yield self.verdict(
                step, Line.ASSIGNOR, None if told is None else told == expected, told, expected
            )
        for r in found:
            yield from self._beginning(step, r)
        yield from self._holdings.moved(step, before, found)
        if self.truth.protocol in EPOCHS and before is not None:
            yield from self._holdings.waits(step, before, found)

    def _members(self, step: Step, last: Rebalance) -> Verdict:
        members = sorted(self.client(m) for m in last.members)
        is_open = self.source is Source.LOG and not members and last.outcome is not RebalanceOutcome.EMPTY
        is_right = None if is_open else members == sorted(step.held)
        return self.verdict(step, Line.MEMBERS, is_right, members, sorted(step.held))

    def _causes(self, step: Step, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        told = [(r.cause.kind, sorted(self.named(r.cause))) for r in found]
        follow_ups = _FOLLOW_UPS | (_FOLLOW_UPS_WITH_REASONS if self.source.has_reasons else set())
        expected = {(kind, name) for kind, names in step.causes.items() for name in names}
        hits = 0
        for r in found:
            kind = r.cause.kind
            names = self.named(r.cause)
            how = _EXACT_ENDS.get(kind)
            if how is not None and CauseKind.MEMBER_GONE in step.causes:
                is_right = names <= step.causes[CauseKind.MEMBER_GONE]
                yield self.verdict(step, Line.HOW_GONE, step.gone_how == how, how, step.gone_how)
                kind = CauseKind.MEMBER_GONE
            else:
                # A leader that changes its metadata joins again.
                meant = CauseKind.METADATA_CHANGED if kind is CauseKind.LEADER_REJOINED else kind
                is_right = meant in step.causes and names <= step.causes[meant]
            if kind is CauseKind.MEMBER_GONE and is_right and how is None:
                yield self.verdict(step, Line.HOW_GONE, None, r.cause.kind, step.gone_how)
            # Who began a rebalance that was seen before it was over may not be known.
            is_open = kind is CauseKind.UNKNOWN or (kind in _FOLLOW_UPS and r.began_within_ms is not None)
            hits += is_right or is_open
            is_right = is_right or is_open or kind in follow_ups
            class_ = self._class_of_cause(kind, r)
            yield Verdict(
                step.action,
                Line.CAUSE,
                class_ if is_right else Class.WRONG,
                f"{r.cause.kind}: {', '.join(sorted(names))}",
                str(sorted(expected)),
            )
            if kind in step.causes and r.cause.member_ids:
                yield self._about_client(step, r.cause)
            if kind is CauseKind.MEMBER_GONE and self.source.is_observed and how is None:
                yield self._commit(step, r)
        if not hits:
            yield self.verdict(step, Line.CAUSE, False, told, sorted(expected))

    def _class_of_cause(self, kind: CauseKind, r: Rebalance) -> Class:
        if kind is CauseKind.UNKNOWN or (kind is CauseKind.JOINED_AGAIN and self.source.is_observed):
            return Class.UNKNOWN
        is_exact = not self.source.is_observed or (
            self.source is not Source.POLLING
            and (
                kind not in _INFERRED_OF_EPOCHS
                if self.truth.protocol in EPOCHS
                else kind is CauseKind.STATIC_MEMBER_RETURNED
                or (self.source.has_reasons and not r.is_begin_unknown)
            )
        )
        return Class.EXACT if is_exact else Class.INFERRED

    def _about_client(self, step: Step, cause: Cause) -> Verdict:
        if cause.client_id is None:
            return self.verdict(step, Line.CLIENT, None, "the member id alone")
        instances = {self.truth.instances.get(self.client(cause.client_id))}
        is_right = (
            self.client(cause.client_id) in {name for names in step.causes.values() for name in names}
            and cause.group_instance_id in instances
            and (cause.client_host or "").lstrip("/") == "127.0.0.1"
        )
        said = (cause.client_id, cause.group_instance_id, cause.client_host)
        return self.verdict(step, Line.CLIENT, is_right, said, step.causes)

    def _commit(self, step: Step, r: Rebalance) -> Verdict:
        reason = r.cause.reason
        client = next(iter(self.named(r.cause)), "")
        committed_ms = step.commits_ms.get(client)
        came = [seen.at_ms for seen in self.truth.seen if seen.client_id == client and seen.event == "came"]
        last_came_ms = max((at_ms for at_ms in came if at_ms < step.began_ms), default=0)
        if committed_ms is not None and committed_ms < last_came_ms:
            committed_ms = None
        if (match := _COMMIT.search(reason)) is not None:
            said_ms = r.began_ms - float(match[1]) * 1_000
            is_right: bool | None = committed_ms is not None and self._is_of_commit(said_ms, committed_ms)
        else:
            is_right = None if _NO_COMMIT not in reason else committed_ms is None
        return self.verdict(step, Line.LAST_COMMIT, is_right, reason, committed_ms)

    def _is_of_commit(self, said_ms: float, committed_ms: int) -> bool:
        """Return True if a commit of which a client knew at `committed_ms` was at `said_ms`. It follows on a
        step, and polls have it before the next one.
        """
        ended = [step.ended_ms for step in self.truth.steps if step.ended_ms <= committed_ms]
        earliest_ms = max(ended, default=committed_ms)
        following = [step.began_ms for step in self.truth.steps if step.began_ms >= committed_ms]
        latest_ms = following[0] if self.source is Source.POLLING else committed_ms
        return earliest_ms - NEAR_MS < said_ms < latest_ms + NEAR_MS

    def _is_generation_right(self, step: Step, last: Rebalance) -> bool | None:
        """By what the members know, as far as they say it. A member of whose partitions none changed may
        not have said a later one.
        """
        if last.generation_to is None:
            return None
        known = max(step.generations.values(), default=last.generation_to)
        # Where no member names its generation, polls count them, and say so.
        return known <= last.generation_to or (None if self.source is Source.POLLING else False)

    def _beginning(self, step: Step, r: Rebalance) -> Iterator[Verdict]:
        if r.is_begin_unknown or r.preparing_ms is None:
            yield self.verdict(step, Line.BEGINNING, None, "not in the log")
            return
        within_ms = r.began_within_ms or 0  # the interval of the looks, where it was seen
        is_right = step.began_ms <= r.began_ms and r.began_ms + r.preparing_ms <= step.ended_ms
        if r.cause.kind in _GONE and CauseKind.MEMBER_GONE in step.causes:
            earliest_ms, latest_ms = self._gone_ms(step)
            is_right = is_right and earliest_ms <= r.began_ms <= latest_ms + within_ms
        said = self.verdict(step, Line.BEGINNING, is_right, r.preparing_ms, (step.began_ms, step.ended_ms))
        yield replace(said, class_=Class.INFERRED) if within_ms and is_right else said

    def _gone_ms(self, step: Step) -> tuple[int, int]:
        """Return the earliest and the latest time at which a member left or its session ended."""
        if step.gone_how == "expired":
            return step.began_ms + SESSION_MS - _SILENT_MS, step.began_ms + SESSION_MS + _SILENT_MS
        ended = [seen.at_ms for seen in self.truth.seen if seen.event == "ended"]
        return step.began_ms, max((at_ms for at_ms in ended if at_ms <= step.ended_ms), default=step.ended_ms)

    def _end(self) -> Verdict:
        report, last = self.report, self.truth.steps[-1]
        members = sorted(self.client(m) for m in report.members)
        expected = "Dead" if self.truth.is_deleted else "Stable" if last.held else "Empty"
        # Our own coordinator ends a group without members and offsets at once, Kafka's at its next pass.
        is_at_once = not (last.held or self.truth.offsets or self.source.is_observed)
        is_right = report.state == expected or (is_at_once and report.state == "Dead")
        is_right = is_right and members == sorted(last.held)
        return self.verdict(last, Line.END, is_right, (report.state, members), (expected, sorted(last.held)))


def _claimed_ms(report: Report) -> int:
    """Return the time since which a report claims to have every record."""
    found = next(filter(None, map(_EVERY_RECORD.search, report.notes)), None)
    return 0 if found is None else int(datetime.fromisoformat(found[1]).timestamp() * 1_000)


def offsets_verdict(truth: Truth, written: Mapping[str, Sequence[int | None]]) -> Iterator[Verdict]:
    """`written` are all values of a partition's offset, in their order, None for a tombstone."""
    for partition, offset in truth.offsets.items():
        values = written.get(partition, [])
        never = truth.never_committed.get(partition)
        is_right = list(values[-1:]) == [offset] and never not in values
        class_ = Class.EXACT if is_right else Class.WRONG
        yield Verdict("at the end", Line.OFFSETS, class_, f"{partition}: {values}", str(offset))
