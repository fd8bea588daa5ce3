"""One report beside one truth: verdicts, and what members have, as the report says it and as it was."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kafka_why.contract.protocols.streams_protocol import AT_ONCE
from kafka_why.why.model import Cause, Rebalance, RebalanceOutcome
from kafka_why.why.report import Report
from kafka_why.wording import lasting_name
from tests.observed.lines import Class, Line, Source, Verdict
from tests.observed.truth import Step, Truth

EPOCHS = ("consumer", "streams", "share")
# Between what a client sees and what the broker writes.
NEAR_MS = 500


class Comparison:
    """One report, made from one source, beside one truth. `clients` are those of member ids that only another
    report on the group names.
    """

    def __init__(
        self, truth: Truth, report: Report, source: Source, clients: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.truth, self.report, self.source = truth, report, source
        self._names = {**clients, **report.clients}
        self._clients = {instance: client for client, instance in truth.instances.items()}

    def verdict(
        self, step: Step, line: Line, is_right: bool | None, said: object, happened: object = ""
    ) -> Verdict:
        class_ = Class.UNKNOWN if is_right is None else self._class(line) if is_right else Class.WRONG
        return Verdict(step.action, line, class_, str(said), str(happened))

    def _class(self, line: Line) -> Class:
        is_late = self.source is Source.POLLING and line in (Line.LAST_COMMIT, Line.ASSIGNED, Line.IDLE)
        is_inferred = self.source.is_observed and line is Line.ASSIGNOR and self.truth.protocol in EPOCHS
        return Class.INFERRED if is_inferred or is_late else Class.EXACT

    def named(self, cause: Cause) -> set[str]:
        """Return the client ids of the members that a cause is about."""
        return {self.client(member_id) for member_id in cause.member_ids}

    def client(self, member_id: str) -> str:
        name = lasting_name(member_id, self._names)
        name = self._clients.get(name, name)
        return re.sub(r"-StreamThread-\d+-consumer$", "", name)


def partitions_in(by_topic: Mapping[str, Sequence[int]]) -> set[str]:
    """Return partitions as TOPIC:NUMBER."""
    return {f"{topic}:{number}" for topic, numbers in by_topic.items() for number in numbers}


_SETTLED = (RebalanceOutcome.STABLE, RebalanceOutcome.EMPTY)
_APPLICATIONS = ("Kafka Streams", "Kafka Connect")
# A member joins again when it has given up what it has to: Connect's tasks may take 5 s to stop.
_FOLLOWS_MS = 10_000


class Holdings(Comparison):
    """Follows what each member has, from step to step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held: dict[str, set[str]] | None = {}

    def skip(self, step: Step) -> None:
        """Take over the members' holdings after a step that the report lacks."""
        self._held = {client: set(held) for client, held in step.held.items()}

    def moved(self, step: Step, before: Step | None, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        """Check that each member holds what the moves reported so far add up to."""
        if self.source is Source.LOG:
            yield self.verdict(step, Line.MOVED, None, "not in the log")
            return
        if self.truth.clients in _APPLICATIONS:
            yield from self._of_application(step, found)
            return
        if self._held is None and before is not None:
            self._held = {client: set(held) for client, held in before.held.items()}
        if self._held is None or any(r.moves is None and r.outcome in _SETTLED for r in found):
            self._held = None
            yield self.verdict(step, Line.MOVED, None, "not in the history")
            return
        wrong = self._apply(found)
        held = {client: sorted(of) for client, of in self._held.items() if of}
        happened = {client: of for client, of in step.held.items() if of}
        is_right = not wrong and held == happened
        yield self.verdict(step, Line.MOVED, is_right, [*wrong, held], happened)
        ended_ms = found[-1].ended_ms
        last_came_ms = max(
            (
                s.at_ms
                for s in self.truth.seen
                if s.event == "came" and step.began_ms <= s.at_ms <= step.ended_ms
            ),
            default=None,
        )
        if last_came_ms is not None and ended_ms is not None and self.truth.protocol == "classic":
            latest_ms = step.ended_ms if self.source is Source.POLLING else last_came_ms + 50
            is_right = step.began_ms <= ended_ms <= latest_ms
            yield self.verdict(step, Line.ASSIGNED, is_right, ended_ms, last_came_ms)

    def _apply(self, found: Sequence[Rebalance]) -> list[str]:
        """Let members gain and lose what the report says. Return what cannot be."""
        assert self._held is not None
        wrong = []
        for moves in (r.moves for r in found if r.moves is not None):
            for member in moves.members:
                held = self._held.setdefault(self.client(member.member_id), set())
                lost, gained = partitions_in(member.lost), partitions_in(member.gained)
                if len(held) != member.before or not lost <= held or gained & held:
                    wrong.append(f"{member} has {sorted(held)}")
                held -= lost
                held |= gained
                if len(held) != member.after:
                    wrong.append(f"{member} has {sorted(held)} now")
        return wrong

    def _of_application(self, step: Step, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        assert self._held is not None
        for r in found:
            for gone in self._held.keys() - {self.client(m) for m in r.members}:
                del self._held[gone]
            for member_id, work in r.connect.items():
                held = self._held.setdefault(self.client(member_id), set())
                held -= _units(work.revoked_connectors, work.revoked_tasks)
                held |= _units(work.connectors, work.tasks)
            yield from self._next(step, r)
        if found[-1].streams:
            yield self._tasks(step, found[-1])
        elif step.held:
            held_now = {client: sorted(self._held.get(client, ())) for client in step.held}
            is_right = held_now == step.held
            # What changes between two polls is lost, and an assignment has the changes only.
            known = (
                None if self.source is Source.POLLING and self._is_latest_right(step, found[-1]) else False
            )
            yield self.verdict(step, Line.MOVED, is_right or known, held_now, step.held)

    def _is_latest_right(self, step: Step, last: Rebalance) -> bool:
        return all(
            _units(work.connectors, work.tasks) <= {*step.held.get(self.client(member_id), ())}
            for member_id, work in last.connect.items()
        )

    def _next(self, step: Step, r: Rebalance) -> Iterator[Verdict]:
        """Check that the rebalance that the report announces came, and when."""
        if r.ended_ms is None:
            return
        later = [it.began_ms - r.ended_ms for it in self.report.rebalances if it.number > r.number]
        after_ms = later[0] if later else None
        delay_ms = max((work.delay_ms for work in r.connect.values()), default=0)
        if delay_ms:
            is_right = after_ms is not None and after_ms <= delay_ms + _FOLLOWS_MS
            yield self.verdict(step, Line.NEXT, is_right, f"delayed {delay_ms}", after_ms)
        if any(work.revoked_connectors or work.revoked_tasks for work in r.connect.values()) or any(
            tasks.next_rebalance_ms == AT_ONCE for tasks in r.streams.values()
        ):
            is_right = after_ms is not None and after_ms <= _FOLLOWS_MS
            yield self.verdict(step, Line.NEXT, is_right, "at once", after_ms)
        probing = [tasks.next_rebalance_ms for tasks in r.streams.values() if tasks.next_rebalance_ms]
        if probing:
            probing_ms = min(probing) - r.ended_ms
            came: bool | None = None if not later else min(later) <= probing_ms + _FOLLOWS_MS
            yield self.verdict(step, Line.NEXT, came, f"probing in {probing_ms}", after_ms)

    def _tasks(self, step: Step, r: Rebalance) -> Verdict:
        told: dict[str, list[str]] = {}
        for member_id, tasks in r.streams.items():
            of = told.setdefault(self.client(member_id), [])
            of += [f"active:{task}" for task in tasks.active] + [f"standby:{task}" for task in tasks.standby]
        told = {client: sorted(of) for client, of in told.items()}
        return self.verdict(step, Line.MOVED, told == step.held, told, step.held)

    def waits(self, step: Step, before: Step, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        owners = {partition: client for client, held in before.held.items() for partition in held}
        for r in found:
            waits = [
                (self.client(way.member_id), partition, handed.of_member_id)
                for way in r.progress
                for handed in way.waited_for
                for partition in partitions_in(handed.partitions)
            ]
            if waits:
                is_right = all(
                    partition in step.held.get(client, ())
                    and (of is None or owners.get(partition) == self.client(of))
                    for client, partition, of in waits
                )
                yield self.verdict(step, Line.WAITED, is_right, waits, owners)
            if r.idle is not None and r.idle.partitions:
                yield self.verdict(step, Line.IDLE, self._is_idle_right(step, r), r.idle, self._idle(step))

    def _idle(self, step: Step) -> dict[str, int]:
        """Return how long partitions of members that stay had no consumer, between their calls."""
        went: dict[str, int] = {}
        idle: dict[str, int] = {}
        for seen in self.truth.seen:
            if not step.began_ms <= seen.at_ms <= step.ended_ms:
                continue
            for partition in seen.words:
                if seen.event == "went" and seen.client_id in step.held:
                    went[partition] = seen.at_ms
                elif seen.event == "came" and partition in went:
                    idle[partition] = seen.at_ms - went[partition]
        return idle

    def _is_idle_right(self, step: Step, r: Rebalance) -> bool:
        assert r.idle is not None
        known = self._idle(step)
        # Polls see both ends later, and not by the same time.
        least_ms = 0 if self.source is Source.POLLING else max(known.values(), default=0) - NEAR_MS
        return (
            least_ms <= r.idle.longest_ms <= step.ended_ms - step.began_ms
            and len(known) <= sum(map(len, step.held.values())) + r.idle.partitions
        )


def _units(connectors: Sequence[str], tasks: dict[str, list[int]]) -> set[str]:
    """Connectors and tasks, as `tests.observed.applications` names them."""
    found = {f"connector:{connector}" for connector in connectors}
    return found | {f"task:{connector}-{task}" for connector, of in tasks.items() for task in of}
