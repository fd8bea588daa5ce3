"""A simulated client: a process of the log, with its reactions, against a coordinator that may respond
differently than in the log.

It behaves as Kafka's consumer does: it joins, syncs, sends heartbeats, and joins again when a response
requires it. At the time a simulated reaction begins, the process may have been waiting to react in the log.
Then the reaction ends at the end of that wait. Any other reaction takes the process's usual time, and is
postponed while the process is paused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from assignors.kafka.server_side import is_for_coordinator
from clients.coordinator_client import Header
from kafka_why.contract.kafka.requests import (
    AnyRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
)
from kafka_why.contract.kafka.requests import Protocol as RequestProtocol
from kafka_why.contract.kafka.responses import AnyResponse, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import Claim, TopicPartition
from operations.whatif.changes import Changes
from operations.whatif.facts import (
    ClientFleet,
    ClientProcess,
    LogMoment,
    Reaction,
    ReactionKind,
    SentRequest,
    TimeSpan,
)
from operations.whatif.observer import (
    FATAL,
    LOST_ID,
    assignments,
    is_cooperative,
    read_partitions,
    requires_join,
)
from operations.whatif.observer import protocols as protocols_of

Action = Callable[[LogMoment, str], None]

# The version of simulated Heartbeats and SyncGroups. Newer SyncGroups have to name their protocol; these do.
_API_VERSION: Final = 4


class SimulationEnvironment(Protocol):
    """The environment of a client, which runs its actions at their times, and sends its requests."""

    def at(self, moment: LogMoment, request_id: str, action: Action) -> None: ...
    def send(
        self, client: "SimulatedClient", moment: LogMoment, request_id: str, request: AnyRequest
    ) -> None: ...


@dataclass(slots=True)
class _SeenReactions:
    """The reactions of one kind that the log shows, in order. Each is used once."""

    seen: Sequence[Reaction]
    first: int = 0  # the first that is not used

    def at(self, at_ms: int) -> int | None:
        """Return the number of the reaction that was in progress in the log at this time, or None."""
        for number in range(self.first, len(self.seen)):
            reaction = self.seen[number]
            if reaction.from_ms > at_ms:
                return None
            if reaction.to.at_ms > at_ms or reaction.from_ms == at_ms:
                return number
            self.first = number + 1
        return None


class SimulatedClient:
    """A simulated process in the closed loop. `member_id` is "" while it has none."""

    def __init__(
        self, process: ClientProcess, fleet: ClientFleet, changes: Changes, environment: SimulationEnvironment
    ) -> None:
        self.key = process.key
        self.member_id = ""
        self._process = process
        self._fleet = fleet
        self._changes = changes
        self._environment = environment
        self._instance_id = process.client if changes.static else process.joins[0][1].group_instance_id
        self._seen = {kind: _SeenReactions(process.reactions.get(kind, ())) for kind in ReactionKind}
        self._generation = -1
        self._sync: SyncGroup | None = None
        self._held: frozenset[TopicPartition] = frozenset()
        self._claim: Claim | None = None
        self._waits: type[JoinGroup] | type[SyncGroup] | None = None
        self._over = False
        self._join_plan = 0  # the number of the valid plan to join; 0: there is none
        self._beat_plan = 0  # likewise for heartbeats
        self._plans = 0

    def begin(self) -> None:
        """Plan what the process does at fixed times."""
        process = self._process
        self._environment.at(process.starts.moment, process.starts.request_id, self._join)
        for rejoin in process.rejoins:
            self._environment.at(rejoin.moment, rejoin.request_id, self._join)
        for commit in process.commits:
            self._environment.at(commit.moment, commit.request_id, self._commit(commit))
        if process.leave is not None:
            self._environment.at(process.leave.moment, process.leave.request_id, self._leave)
        for stall in process.stalls:
            moment, request_id = stall.left.moment, stall.left.request_id
            if self._changes.max_poll_interval_ms is not None:
                moment, request_id = LogMoment(stall.span.from_ms + self._changes.max_poll_interval_ms), ""
            if stall.span.to_ms is None or moment.at_ms < stall.span.to_ms:
                self._environment.at(moment, request_id, self._poll_timeout(stall.left, stall.span))

    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        """Handle the response to one of the client's requests."""
        error = response.error_code
        if error in LOST_ID:
            self.member_id = ""
            self._stop_beats()
        if error in FATAL:
            self._refused(at_ms)
        elif isinstance(response, JoinGroupResponse):
            if self._waits is JoinGroup:
                self._join_answered(at_ms, response)
        elif isinstance(response, SyncGroupResponse):
            if self._waits is SyncGroup:
                self._sync_answered(at_ms, response)
        elif self._waits is not JoinGroup and requires_join(response):
            self._must_join(at_ms, error)

    def _join_answered(self, at_ms: int, response: JoinGroupResponse) -> None:
        """Handle a JoinGroup response: send SyncGroup, join again, or give up."""
        self._waits = None
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._plan_join(ReactionKind.GIVEN_ID, at_ms)
            return
        if response.error_code is not ErrorCode.NONE:
            self._must_join(at_ms, response.error_code)
            return
        self.member_id, self._generation = response.member_id, response.generation_id
        leads = bool(response.members) and not response.skip_assignment
        name = response.protocol_name or ""
        counts = self._fleet.counts_at(at_ms)
        sync = SyncGroup(
            **self._common(),
            generation_id=self._generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=response.protocol_type,
            protocol_name=response.protocol_name,
            assignments=assignments(name, response.members, counts) if leads else [],
        )
        self._plan_sync(ReactionKind.LEADER_SYNC if leads else ReactionKind.SYNC, at_ms, sync)
        self._plan_beat(at_ms)

    def _sync_answered(self, at_ms: int, response: SyncGroupResponse) -> None:
        """Handle a SyncGroup response: hold the assigned partitions, or join again."""
        self._waits = None
        if response.error_code is not ErrorCode.NONE:
            self._must_join(at_ms, response.error_code)
            return
        held, self._held = self._held, read_partitions(response.assignment)
        self._claim = Claim(tuple(sorted(self._held)), self._generation)
        if held - self._held and is_cooperative(self._protocols(at_ms)):
            self._plan_join(ReactionKind.REVOKED, at_ms)

    def _refused(self, at_ms: int) -> None:
        """Give up, unless the process continued after such an answer in the log."""
        self._waits = None
        if self._seen[ReactionKind.ERROR].at(at_ms) is None:
            self._over = True
        else:
            self._plan_join(ReactionKind.ERROR, at_ms)

    def _must_join(self, at_ms: int, error: ErrorCode) -> None:
        if error is not ErrorCode.REBALANCE_IN_PROGRESS or not self._process.beats_while_rebalancing:
            self._stop_beats()
        if not self._join_plan:
            kind = ReactionKind.REBALANCE if error is ErrorCode.REBALANCE_IN_PROGRESS else ReactionKind.ERROR
            self._plan_join(kind, at_ms)

    def _plan_join(self, kind: ReactionKind, at_ms: int) -> None:
        self._plans += 1
        plan = self._join_plan = self._plans
        self._plan(kind, at_ms, self._join, lambda: plan == self._join_plan)

    def _plan_sync(self, kind: ReactionKind, at_ms: int, request: SyncGroup) -> None:
        self._sync = request

        def sync(moment: LogMoment, request_id: str) -> None:
            self._sync, self._waits = None, SyncGroup
            self._environment.send(self, moment, request_id, request)

        self._plan(kind, at_ms, sync, lambda: self._sync is request)

    def _plan_beat(self, at_ms: int) -> None:
        self._plans += 1
        plan = self._beat_plan = self._plans

        def beat(moment: LogMoment, request_id: str) -> None:
            self._beat(moment, request_id)
            if plan == self._beat_plan:
                self._plan_beat(moment.at_ms)

        self._plan(ReactionKind.HEARTBEAT, at_ms, beat, lambda: plan == self._beat_plan)

    def _plan(self, kind: ReactionKind, at_ms: int, action: Action, is_valid: Callable[[], bool]) -> None:
        """Schedule a reaction to a current event. It is dropped if it is no longer valid at its time."""
        waits, number, usual_ms = self._seen[kind], None, self._process.usual_ms[kind]
        if kind is ReactionKind.HEARTBEAT and self._changes.heartbeat_interval_ms is not None:
            usual_ms = self._changes.heartbeat_interval_ms
        else:
            number = waits.at(at_ms)

        def act(moment: LogMoment, request_id: str) -> None:
            if not is_valid() or self._is_over(moment):
                return
            if number is not None:
                waits.first = number + 1
            action(moment, request_id)

        if number is not None:
            self._environment.at(waits.seen[number].to, waits.seen[number].request_id, act)
            return
        stalls = [] if kind is ReactionKind.HEARTBEAT else [stall.span for stall in self._process.stalls]
        when_ms = _postponed(at_ms + usual_ms, [*self._process.pauses, *stalls])
        if when_ms is not None:
            self._environment.at(LogMoment(when_ms), "", act)

    def _stop_beats(self) -> None:
        self._beat_plan = 0

    def _is_over(self, moment: LogMoment) -> bool:
        """Return True if the process no longer runs."""
        return self._over or (self._process.ends is not None and moment > self._process.ends)

    def _join(self, moment: LogMoment, request_id: str) -> None:
        if self._is_over(moment):
            return
        self._stop_beats()
        self._join_plan, self._sync, self._waits = 0, None, JoinGroup
        protocols = self._protocols(moment.at_ms)
        recorded = self._recorded_join(moment.at_ms)
        if not is_cooperative(protocols) or not self.member_id:
            self._held = frozenset()
        changes = self._changes
        counts = recorded.partitions_per_topic
        if changes.assignors and any(is_for_coordinator(name) for name in changes.assignors):
            counts = self._fleet.counts_at(moment.at_ms)
        request = replace(
            recorded,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocols=protocols,
            session_timeout_ms=changes.session_timeout_ms or recorded.session_timeout_ms,
            rebalance_timeout_ms=changes.max_poll_interval_ms or recorded.rebalance_timeout_ms,
            partitions_per_topic=counts,
        )
        self._environment.send(self, moment, request_id, request)

    def _beat(self, moment: LogMoment, request_id: str) -> None:
        heartbeat = Heartbeat(
            **self._common(),
            generation_id=self._generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
        )
        self._environment.send(self, moment, request_id, heartbeat)

    def _commit(self, sent: SentRequest) -> Action:
        """Commit as in the log, if the process has an assignment then."""

        def commit(moment: LogMoment, request_id: str) -> None:
            is_joining = self._waits is not None or self._sync is not None
            if not self._beat_plan or is_joining or self._is_over(moment):
                return
            assert isinstance(sent.request, OffsetCommit)
            request = replace(
                sent.request,
                member_id=self.member_id,
                generation_id=self._generation,
                group_instance_id=self._instance_id,
            )
            self._environment.send(self, moment, request_id, request)

        return commit

    def _leave(self, moment: LogMoment, request_id: str) -> None:
        """Stop. A member that the experiment makes static does not leave (KIP-345)."""
        if self._over:
            return
        self._over = True
        leave = self._process.leave
        if self.member_id and not self._changes.static and leave is not None:
            self._send_leave(moment, request_id, leave)

    def _poll_timeout(self, left: SentRequest, span: TimeSpan) -> Action:
        """Return the action of a process that does not poll: it leaves. A static member only sends no
        heartbeats until the end of `span`.
        """

        def leave(moment: LogMoment, request_id: str) -> None:
            if not self.member_id or self._waits is JoinGroup or self._is_over(moment):
                return
            self._stop_beats()
            if self._instance_id is None:
                self._send_leave(moment, request_id, left)
                self.member_id = ""
                self._plan_join(ReactionKind.POLLED, moment.at_ms)
            elif span.to_ms is not None:
                self._plan_beat(span.to_ms)

        return leave

    def _send_leave(self, moment: LogMoment, request_id: str, left: SentRequest) -> None:
        assert isinstance(left.request, LeaveGroup)
        (leaving,) = left.request.members
        members = [replace(leaving, member_id=self.member_id, group_instance_id=self._instance_id)]
        self._environment.send(self, moment, request_id, replace(left.request, members=members))

    def _recorded_join(self, at_ms: int) -> JoinGroup:
        """Return the process's last JoinGroup in the log before this time."""
        before = [request for sent_ms, request in self._process.joins if sent_ms <= at_ms]
        return before[-1] if before else self._process.joins[0][1]

    def _protocols(self, at_ms: int) -> list[RequestProtocol]:
        return protocols_of(self._recorded_join(at_ms), self._changes.assignors, self._held, self._claim)

    def _common(self) -> Header:
        recorded = self._process.joins[0][1]
        return {
            "group_id": recorded.group_id,
            "correlation_id": recorded.correlation_id,
            "reply_partition": recorded.reply_partition,
            "api_version": _API_VERSION,
            "client_id": recorded.client_id,
            "client_host": recorded.client_host,
        }


def _postponed(at_ms: int, spans: Sequence[TimeSpan]) -> int | None:
    """Return the first time from `at_ms` on that is in none of the spans, or None if such a span does not
    end.
    """
    for span in sorted(spans, key=lambda span: span.from_ms):
        if span.holds(at_ms):
            if span.to_ms is None:
                return None
            at_ms = span.to_ms
    return at_ms
