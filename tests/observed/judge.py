"""What a report on a group says, line by line, beside what happened."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from kafka_why.contract.protocols.streams_protocol import AT_ONCE
from kafka_why.why.model import Cause, CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.report import Report
from kafka_why.why.wording import lasting_name
from tests.observed.lines import Class, Line, Verdict
from tests.observed.member import HEARTBEAT_MS, SESSION_MS
from tests.observed.truth import Step, Truth

_EPOCHS = ("consumer", "streams", "share")
_GONE = (CauseKind.MEMBER_GONE, CauseKind.MEMBER_LEFT, CauseKind.SESSION_TIMEOUT)
_INFERRED_OF_EPOCHS = (CauseKind.TOPICS_CHANGED, CauseKind.PARTITIONS_INITIALIZED)
_DEFAULT_ASSIGNOR = "uniform"
_CAUSES_OF_OURS = {
    CauseKind.MEMBER_LEFT: "left",
    CauseKind.SESSION_TIMEOUT: "expired",
}
_FOLLOW_UPS = {CauseKind.JOINED_AGAIN}
# Our own coordinator says which member joined again, and with what.
_FOLLOW_UPS_OF_OURS = {CauseKind.METADATA_CHANGED, CauseKind.LEADER_REJOINED}
_COMMIT = re.compile(r"the last commit of its partitions was ([\d.]+) s before")
_NO_COMMIT = "none of its partitions had a commit since it got them"
_APPLICATIONS = ("Kafka Streams", "Kafka Connect")
# A member joins again when it has given up what it has to: Connect's tasks may take 5 s to stop.
_FOLLOWS_MS = 10_000
# A session begins anew with each heartbeat, and the broker looks at sessions when it has the time.
_SILENT_MS = 3_000
# Between what a client sees and what the broker writes.
_NEAR_MS = 500


class Judge:
    """Compares one report with one truth. `is_observed`: the report is on a group of the cluster's own
    coordinator.
    """

    def __init__(self, truth: Truth, report: Report, *, is_observed: bool) -> None:
        self._truth, self._report, self._is_observed = truth, report, is_observed
        self._clients = {instance: client for client, instance in truth.instances.items()}
        self._held: dict[str, set[str]] | None = {}

    def verdicts(self) -> Iterator[Verdict]:
        """Yield them for each step, then those of the whole group."""
        steps = self._truth.steps
        for place, step in enumerate(map(self._with_session, steps)):
            following = steps[place + 1].began_ms if place + 1 < len(steps) else None
            found = [
                r
                for r in self._report.rebalances
                if (place == 0 or r.began_ms >= step.began_ms)
                and (following is None or r.began_ms < following)
            ]
            before = steps[place - 1] if place else None
            if not found and place == 0 and step.began_ms <= self._report.from_ms <= step.ended_ms:
                # The history begins later, and says so.
                yield self._verdict(step, Line.TIME, None, f"begins at {self._report.from_ms}")
                self._held = {client: set(held) for client, held in step.held.items()}
                continue
            yield from self._of_step(step, before, found)
        yield self._end()

    def _with_session(self, step: Step) -> Step:
        """A static member that was away for longer than its session went, and joined anew."""
        (client,) = step.causes.get(CauseKind.STATIC_MEMBER_RETURNED) or {""}
        back_ms = [s.at_ms for s in self._truth.seen if s.client_id == client and s.at_ms > step.began_ms]
        if not back_ms or back_ms[0] - step.began_ms <= SESSION_MS - HEARTBEAT_MS:
            return step
        causes = {**step.causes, CauseKind.MEMBER_GONE: {client}, CauseKind.MEMBER_JOINED: {client}}
        return replace(step, causes=causes, gone_how="expired")

    def _of_step(self, step: Step, before: Step | None, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        is_in_time = all(step.began_ms <= r.began_ms <= step.ended_ms for r in found)
        times = [(r.began_ms, r.ended_ms) for r in found]
        yield self._verdict(
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
        yield self._verdict(
            step, Line.FORMED, self._is_generation_right(step, last), last.generation_to, step.generations
        )
        members = sorted(self._client(m) for m in last.members)
        yield self._verdict(step, Line.MEMBERS, members == sorted(step.held), members, sorted(step.held))
        if step.held and self._truth.assignor is not None:
            told = last.protocol_name
            expected = _DEFAULT_ASSIGNOR if last.goes_by_epochs else self._truth.assignor
            yield self._verdict(
                step, Line.ASSIGNOR, None if told is None else told == expected, told, expected
            )
        for r in found:
            yield from self._beginning(step, r)
        yield from self._moved(step, before, found)
        if self._truth.protocol in _EPOCHS and before is not None:
            yield from self._waits(step, before, found)

    def _causes(self, step: Step, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        told = [(r.cause.kind, sorted(self._named(r.cause))) for r in found]
        follow_ups = _FOLLOW_UPS | (set() if self._is_observed else _FOLLOW_UPS_OF_OURS)
        expected = {(kind, name) for kind, names in step.causes.items() for name in names}
        hits = 0
        for r in found:
            kind = r.cause.kind
            names = self._named(r.cause)
            how = _CAUSES_OF_OURS.get(kind)
            if how is not None and CauseKind.MEMBER_GONE in step.causes:
                is_right = names <= step.causes[CauseKind.MEMBER_GONE]
                yield self._verdict(step, Line.HOW_GONE, step.gone_how == how, how, step.gone_how)
                kind = CauseKind.MEMBER_GONE
            else:
                # Our own coordinator says of a leader that changes its metadata that it joined again.
                meant = CauseKind.METADATA_CHANGED if kind is CauseKind.LEADER_REJOINED else kind
                is_right = meant in step.causes and names <= step.causes[meant]
            if kind is CauseKind.MEMBER_GONE and is_right and how is None:
                yield self._verdict(step, Line.HOW_GONE, None, r.cause.kind, step.gone_how)
            is_open = kind is CauseKind.UNKNOWN
            hits += is_right or is_open
            is_right = is_right or is_open or kind in follow_ups
            class_ = self._class_of_cause(kind)
            yield Verdict(
                step.action,
                Line.CAUSE,
                class_ if is_right else Class.WRONG,
                f"{kind}: {', '.join(sorted(names))}",
                str(sorted(expected)),
            )
            if kind in step.causes and r.cause.member_ids:
                yield self._about_client(step, r.cause)
            if kind is CauseKind.MEMBER_GONE and self._is_observed:
                yield self._commit(step, r)
        if not hits:
            yield self._verdict(step, Line.CAUSE, False, told, sorted(expected))

    def _class_of_cause(self, kind: CauseKind) -> Class:
        if not self._is_observed and kind is not CauseKind.UNKNOWN:
            return Class.EXACT
        if kind in (CauseKind.JOINED_AGAIN, CauseKind.UNKNOWN):
            return Class.UNKNOWN
        is_exact = self._truth.protocol in _EPOCHS and kind not in _INFERRED_OF_EPOCHS
        return Class.EXACT if is_exact or kind is CauseKind.STATIC_MEMBER_RETURNED else Class.INFERRED

    def _about_client(self, step: Step, cause: Cause) -> Verdict:
        if cause.client_id is None:
            return self._verdict(step, Line.CLIENT, None, "the member id alone")
        instances = {self._truth.instances.get(self._client(cause.client_id))}
        is_right = (
            self._client(cause.client_id) in {name for names in step.causes.values() for name in names}
            and cause.group_instance_id in instances
            and (cause.client_host or "").lstrip("/") == "127.0.0.1"
        )
        said = (cause.client_id, cause.group_instance_id, cause.client_host)
        return self._verdict(step, Line.CLIENT, is_right, said, step.causes)

    def _commit(self, step: Step, r: Rebalance) -> Verdict:
        reason = r.cause.reason
        client = next(iter(self._named(r.cause)), "")
        committed_ms = step.commits_ms.get(client)
        came = [seen.at_ms for seen in self._truth.seen if seen.client_id == client and seen.event == "came"]
        last_came_ms = max((at_ms for at_ms in came if at_ms < step.began_ms), default=0)
        if committed_ms is not None and committed_ms < last_came_ms:
            committed_ms = None
        if (match := _COMMIT.search(reason)) is not None:
            is_right: bool | None = (
                committed_ms is not None
                and abs(float(match[1]) * 1_000 - (r.began_ms - committed_ms)) < _NEAR_MS
            )
        else:
            is_right = None if _NO_COMMIT not in reason else committed_ms is None
        return self._verdict(step, Line.LAST_COMMIT, is_right, reason, committed_ms)

    def _is_generation_right(self, step: Step, last: Rebalance) -> bool | None:
        """By what the members know, as far as they say it. A member of whose partitions none changed may
        not have said a later one.
        """
        if last.generation_to is None:
            return None
        known = max(step.generations.values(), default=last.generation_to)
        return known <= last.generation_to

    def _beginning(self, step: Step, r: Rebalance) -> Iterator[Verdict]:
        if r.is_begin_unknown or r.preparing_ms is None:
            yield self._verdict(step, Line.BEGINNING, None, "not in the log")
            return
        within_ms = r.began_within_ms or 0  # the interval of the looks, where it was seen
        is_right = step.began_ms <= r.began_ms and r.began_ms + r.preparing_ms <= step.ended_ms
        if r.cause.kind in _GONE and CauseKind.MEMBER_GONE in step.causes:
            earliest_ms, latest_ms = self._gone_ms(step)
            is_right = is_right and earliest_ms <= r.began_ms <= latest_ms + within_ms
        said = self._verdict(step, Line.BEGINNING, is_right, r.preparing_ms, (step.began_ms, step.ended_ms))
        yield replace(said, class_=Class.INFERRED) if within_ms and is_right else said

    def _gone_ms(self, step: Step) -> tuple[int, int]:
        """Between which times a member went: when it left, or when its session was over."""
        if step.gone_how == "expired":
            return step.began_ms + SESSION_MS - _SILENT_MS, step.began_ms + SESSION_MS + _SILENT_MS
        ended = [seen.at_ms for seen in self._truth.seen if seen.event == "ended"]
        return step.began_ms, max((at_ms for at_ms in ended if at_ms <= step.ended_ms), default=step.ended_ms)

    def _moved(self, step: Step, before: Step | None, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        """By all that members gained and lost so far, each has what it says that it has."""
        if self._truth.clients in _APPLICATIONS:
            yield from self._of_application(step, found)
            return
        if self._held is None and before is not None:
            self._held = {client: set(held) for client, held in before.held.items()}
        if self._held is None or any(r.moves is None and r.outcome is RebalanceOutcome.STABLE for r in found):
            self._held = None
            yield self._verdict(step, Line.MOVED, None, "not in the history")
            return
        wrong = self._apply(found)
        held = {client: sorted(of) for client, of in self._held.items() if of}
        happened = {client: of for client, of in step.held.items() if of}
        is_right = not wrong and held == happened
        yield self._verdict(step, Line.MOVED, is_right, [*wrong, held], happened)
        ended_ms = found[-1].ended_ms
        last_came_ms = max(
            (
                s.at_ms
                for s in self._truth.seen
                if s.event == "came" and step.began_ms <= s.at_ms <= step.ended_ms
            ),
            default=None,
        )
        if last_came_ms is not None and ended_ms is not None and self._truth.protocol == "classic":
            is_right = step.began_ms <= ended_ms <= last_came_ms + 50
            yield self._verdict(step, Line.ASSIGNED, is_right, ended_ms, last_came_ms)

    def _apply(self, found: Sequence[Rebalance]) -> list[str]:
        """Let members gain and lose what the report says. Returns what cannot be."""
        assert self._held is not None
        wrong = []
        for moves in (r.moves for r in found if r.moves is not None):
            for member in moves.members:
                held = self._held.setdefault(self._client(member.member_id), set())
                lost, gained = _partitions(member.lost), _partitions(member.gained)
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
            for gone in self._held.keys() - {self._client(m) for m in r.members}:
                del self._held[gone]
            for member_id, work in r.connect.items():
                held = self._held.setdefault(self._client(member_id), set())
                held -= _units(work.revoked_connectors, work.revoked_tasks)
                held |= _units(work.connectors, work.tasks)
            yield from self._next(step, r)
        if found[-1].streams:
            yield self._tasks(step, found[-1])
        elif step.held:
            held_now = {client: sorted(self._held.get(client, ())) for client in step.held}
            yield self._verdict(step, Line.MOVED, held_now == step.held, held_now, step.held)

    def _next(self, step: Step, r: Rebalance) -> Iterator[Verdict]:
        """That the rebalance which the report announces came, and when."""
        if r.ended_ms is None:
            return
        later = [it.began_ms - r.ended_ms for it in self._report.rebalances if it.number > r.number]
        after_ms = later[0] if later else None
        delay_ms = max((work.delay_ms for work in r.connect.values()), default=0)
        if delay_ms:
            is_right = after_ms is not None and after_ms <= delay_ms + _FOLLOWS_MS
            yield self._verdict(step, Line.NEXT, is_right, f"delayed {delay_ms}", after_ms)
        if any(work.revoked_connectors or work.revoked_tasks for work in r.connect.values()) or any(
            tasks.next_rebalance_ms == AT_ONCE for tasks in r.streams.values()
        ):
            is_right = after_ms is not None and after_ms <= _FOLLOWS_MS
            yield self._verdict(step, Line.NEXT, is_right, "at once", after_ms)
        probing = [tasks.next_rebalance_ms for tasks in r.streams.values() if tasks.next_rebalance_ms]
        if probing:
            probing_ms = min(probing) - r.ended_ms
            came: bool | None = None if not later else min(later) <= probing_ms + _FOLLOWS_MS
            yield self._verdict(step, Line.NEXT, came, f"probing in {probing_ms}", after_ms)

    def _tasks(self, step: Step, r: Rebalance) -> Verdict:
        told: dict[str, list[str]] = {}
        for member_id, tasks in r.streams.items():
            of = told.setdefault(self._client(member_id), [])
            of += [f"active:{task}" for task in tasks.active] + [f"standby:{task}" for task in tasks.standby]
        told = {client: sorted(of) for client, of in told.items()}
        return self._verdict(step, Line.MOVED, told == step.held, told, step.held)

    def _waits(self, step: Step, before: Step, found: Sequence[Rebalance]) -> Iterator[Verdict]:
        owners = {partition: client for client, held in before.held.items() for partition in held}
        for r in found:
            waits = [
                (self._client(way.member_id), partition, handed.of_member_id)
                for way in r.progress
                for handed in way.waited_for
                for partition in _partitions(handed.partitions)
            ]
            if waits:
                is_right = all(
                    partition in step.held.get(client, ())
                    and (of is None or owners.get(partition) == self._client(of))
                    for client, partition, of in waits
                )
                yield self._verdict(step, Line.WAITED, is_right, waits, owners)
            if r.idle is not None and r.idle.partitions:
                yield self._verdict(step, Line.IDLE, self._is_idle_right(step, r), r.idle, self._idle(step))

    def _idle(self, step: Step) -> dict[str, int]:
        """For how long partitions of members that stay had no consumer, between their calls."""
        went: dict[str, int] = {}
        idle: dict[str, int] = {}
        for seen in self._truth.seen:
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
        return (
            max(known.values(), default=0) - _NEAR_MS <= r.idle.longest_ms <= step.ended_ms - step.began_ms
            and len(known) <= sum(map(len, step.held.values())) + r.idle.partitions
        )

    def _end(self) -> Verdict:
        report, last = self._report, self._truth.steps[-1]
        members = sorted(self._client(m) for m in report.members)
        expected = "Dead" if self._truth.is_deleted else "Stable" if last.held else "Empty"
        # Our own coordinator ends a group without members and offsets at once, Kafka's at its next pass.
        is_over = not (last.held or self._truth.offsets or self._is_observed) and report.state == "Dead"
        is_right = (report.state == expected or is_over) and members == sorted(last.held)
        return self._verdict(last, Line.END, is_right, (report.state, members), (expected, sorted(last.held)))

    def _class(self, line: Line) -> Class:
        is_inferred = self._is_observed and line is Line.ASSIGNOR and self._truth.protocol in _EPOCHS
        return Class.INFERRED if is_inferred else Class.EXACT

    def _verdict(
        self, step: Step, line: Line, is_right: bool | None, said: object, happened: object = ""
    ) -> Verdict:
        class_ = Class.UNKNOWN if is_right is None else self._class(line) if is_right else Class.WRONG
        return Verdict(step.action, line, class_, str(said), str(happened))

    def _named(self, cause: Cause) -> set[str]:
        return {self._client(member_id) for member_id in cause.member_ids}

    def _client(self, member_id: str) -> str:
        """The client id of a member."""
        name = lasting_name(member_id, self._report.clients)
        name = self._clients.get(name, name)
        return re.sub(r"-StreamThread-\d+-consumer$", "", name)


def offsets_verdict(truth: Truth, written: Mapping[str, Sequence[int | None]]) -> Iterator[Verdict]:
    """`written` are all values of a partition's offset, in their order, None for a tombstone."""
    for partition, offset in truth.offsets.items():
        values = written.get(partition, [])
        never = truth.never_committed.get(partition)
        is_right = list(values[-1:]) == [offset] and never not in values
        class_ = Class.EXACT if is_right else Class.WRONG
        yield Verdict("at the end", Line.OFFSETS, class_, f"{partition}: {values}", str(offset))


def _units(connectors: Sequence[str], tasks: dict[str, list[int]]) -> set[str]:
    """Connectors and tasks, as `tests.observed.applications` names them."""
    found = {f"connector:{connector}" for connector in connectors}
    return found | {f"task:{connector}-{task}" for connector, of in tasks.items() for task in of}


def _partitions(by_topic: dict[str, list[int]]) -> set[str]:
    return {f"{topic}:{number}" for topic, numbers in by_topic.items() for number in numbers}
