"""A simulated client of the classic protocol. It repeats a process of the log, with the process's reactions,
against a coordinator that may respond differently than in the log.

It behaves as Kafka's consumer does with the classic protocol: it joins, syncs, sends heartbeats, and joins
again when a response requires it.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from assignors.kafka.server_side import is_for_coordinator
from clients.coordinator_client import Header
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, LeaveGroup, OffsetCommit, SyncGroup
from kafka_why.contract.kafka.requests import Protocol as RequestProtocol
from kafka_why.contract.kafka.responses import AnyResponse, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import Claim, TopicPartition
from operations.whatif.changes import Changes
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    LogMoment,
    ReactionKind,
    SentRequest,
    Stall,
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
from operations.whatif.process import (
    Action,
    SeenReactions,
    SimulatedProcess,
    SimulationEnvironment,
    header_of,
)

# The version of simulated Heartbeats and SyncGroups. Newer SyncGroups have to name their protocol; these do.
_API_VERSION: Final = 4


class SimulatedClient(SimulatedProcess[ClassicProcess]):
    """A simulated process of the classic protocol."""

    def __init__(
        self,
        process: ClassicProcess,
        fleet: ClientFleet,
        changes: Changes,
        environment: SimulationEnvironment,
    ) -> None:
        super().__init__(process, changes, environment)
        self._fleet = fleet
        self._instance_id = process.client if changes.static else process.joins[0][1].group_instance_id
        self._seen = {kind: SeenReactions(process.reactions.get(kind, ())) for kind in ReactionKind}
        self._generation = -1
        self._held: frozenset[TopicPartition] = frozenset()
        self._last_assignment: Claim | None = None  # with its generation; None before the first assignment
        self._awaits_answer_to: type[JoinGroup] | type[SyncGroup] | None = None
        self._planned_sync: SyncGroup | None = None
        self._join_plan: object | None = None  # to send the planned JoinGroup, as `_heartbeat_plan`

    def begin(self) -> None:
        super().begin()
        for stall in self._process.stalls:
            moment, request_id = stall.leave.moment, stall.leave.request_id
            # With another `max.poll.interval.ms` it leaves at another time, or not at all if it polls first.
            if self._changes.max_poll_interval_ms is not None:
                moment, request_id = LogMoment(stall.span.from_ms + self._changes.max_poll_interval_ms), ""
            if stall.span.to_ms is None or moment.at_ms < stall.span.to_ms:
                self._environment.schedule(moment, request_id, partial(self._exceed_poll_interval, stall))

    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        error = response.error_code
        if error in LOST_ID:
            self.member_id = ""
            self._heartbeat_plan = None
        if error in FATAL:
            self._handle_refusal(at_ms)
        elif isinstance(response, JoinGroupResponse):
            if self._awaits_answer_to is JoinGroup:
                self._handle_join_response(at_ms, response)
        elif isinstance(response, SyncGroupResponse):
            if self._awaits_answer_to is SyncGroup:
                self._handle_sync_response(at_ms, response)
        elif self._awaits_answer_to is not JoinGroup and requires_join(response):
            self._rejoin_after(at_ms, error)

    def _handle_join_response(self, at_ms: int, response: JoinGroupResponse) -> None:
        """Handle a JoinGroup response: send SyncGroup, join again, or give up."""
        self._awaits_answer_to = None
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._plan_join(ReactionKind.GIVEN_ID, at_ms)
            return
        if response.error_code is not ErrorCode.NONE:
            self._rejoin_after(at_ms, response.error_code)
            return
        self.member_id, self._generation = response.member_id, response.generation_id
        assigns = bool(response.members) and not response.skip_assignment  # only a leader gets the members
        counts = self._fleet.counts_at(at_ms)
        sync = SyncGroup(
            **self._common(),
            generation_id=self._generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=response.protocol_type,
            protocol_name=response.protocol_name,
            assignments=assignments(response.protocol_name or "", response.members, counts)
            if assigns
            else [],
        )
        self._plan_sync(ReactionKind.LEADER_SYNC if assigns else ReactionKind.SYNC, at_ms, sync)
        self._plan_heartbeat(at_ms)

    def _handle_sync_response(self, at_ms: int, response: SyncGroupResponse) -> None:
        """Handle a SyncGroup response: hold the assigned partitions, or join again."""
        self._awaits_answer_to = None
        if response.error_code is not ErrorCode.NONE:
            self._rejoin_after(at_ms, response.error_code)
            return
        held_before, self._held = self._held, read_partitions(response.assignment)
        self._last_assignment = Claim(tuple(sorted(self._held)), self._generation)
        if held_before - self._held and is_cooperative(self._protocols(at_ms)):
            self._plan_join(ReactionKind.REVOKED, at_ms)

    def _handle_refusal(self, at_ms: int) -> None:
        """Give up, unless the process continued after a refusal at this time in the log."""
        self._awaits_answer_to = None
        if self._seen[ReactionKind.ERROR].in_progress_at(at_ms) is None:
            self._has_stopped = True
        else:
            self._plan_join(ReactionKind.ERROR, at_ms)

    def _rejoin_after(self, at_ms: int, error: ErrorCode) -> None:
        """Plan a JoinGroup because of this error. Stop heartbeats, unless the process continues them in a
        rebalance.
        """
        if error is not ErrorCode.REBALANCE_IN_PROGRESS or not self._process.beats_while_rebalancing:
            self._heartbeat_plan = None
        if not self._join_plan:
            kind = ReactionKind.REBALANCE if error is ErrorCode.REBALANCE_IN_PROGRESS else ReactionKind.ERROR
            self._plan_join(kind, at_ms)

    def _plan_join(self, kind: ReactionKind, at_ms: int) -> None:
        """Plan a JoinGroup as a reaction of this kind. It replaces any planned one."""
        plan = self._join_plan = object()
        self._plan_reaction(kind, at_ms, self._join, lambda: plan is self._join_plan)

    def _plan_sync(self, kind: ReactionKind, at_ms: int, request: SyncGroup) -> None:
        """Plan this SyncGroup. It is dropped if the client sends a JoinGroup first."""
        self._planned_sync = request

        def sync(moment: LogMoment, request_id: str) -> None:
            self._planned_sync = None
            self._awaits_answer_to = SyncGroup
            self._environment.send(self, moment, request_id, request)

        self._plan_reaction(kind, at_ms, sync, lambda: self._planned_sync is request)

    def _plan_heartbeat(self, at_ms: int) -> None:
        """Plan the next Heartbeat, which then plans the one after it."""
        plan = self._heartbeat_plan = object()

        def beat(moment: LogMoment, request_id: str) -> None:
            heartbeat = Heartbeat(
                **self._common(),
                generation_id=self._generation,
                member_id=self.member_id,
                group_instance_id=self._instance_id,
            )
            self._environment.send(self, moment, request_id, heartbeat)
            if plan is self._heartbeat_plan:
                self._plan_heartbeat(moment.at_ms)

        self._plan_reaction(ReactionKind.HEARTBEAT, at_ms, beat, lambda: plan is self._heartbeat_plan)

    def _plan_reaction(
        self, kind: ReactionKind, at_ms: int, action: Action, is_valid: Callable[[], bool]
    ) -> None:
        """Schedule a reaction to a current event. It is dropped if it is no longer valid at its time."""
        seen: SeenReactions | None = self._seen[kind]
        usual_ms, silent_spans = self._process.usual_ms[kind], list(self._process.pauses)
        if kind is not ReactionKind.HEARTBEAT:  # heartbeats continue while the process does not poll
            silent_spans += [stall.span for stall in self._process.stalls]
        elif self._changes.heartbeat_interval_ms is not None:
            seen, usual_ms = None, self._changes.heartbeat_interval_ms
        self._schedule_reaction(seen, usual_ms, silent_spans, at_ms, action, is_valid)

    def _join(self, moment: LogMoment, request_id: str) -> None:
        """Send the recorded JoinGroup of this time with the member's ids, its partitions and the changes."""
        if self._is_over(moment):
            return
        self._join_plan = self._heartbeat_plan = self._planned_sync = None
        self._awaits_answer_to = JoinGroup
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

    def _commit(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Commit as in the log if the process has an assignment at this time."""
        is_joining = self._awaits_answer_to is not None or self._planned_sync is not None
        sends_heartbeats = self._heartbeat_plan is not None
        if not sends_heartbeats or is_joining or self._is_over(moment):
            return
        assert isinstance(sent.request, OffsetCommit)
        request = replace(
            sent.request,
            member_id=self.member_id,
            generation_id=self._generation,
            group_instance_id=self._instance_id,
        )
        self._environment.send(self, moment, request_id, request)

    def _leave(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Stop. A member that the experiment makes static does not leave (KIP-345)."""
        if self.member_id and not self._has_stopped and not self._changes.static:
            self._send_leave(moment, request_id, sent)
        self._has_stopped = True

    def _exceed_poll_interval(self, stall: Stall, moment: LogMoment, request_id: str) -> None:
        """Leave, because `max.poll.interval.ms` is over. A static member only stops its heartbeats until the
        end of the stall.
        """
        if not self.member_id or self._awaits_answer_to is JoinGroup or self._is_over(moment):
            return
        self._heartbeat_plan = None
        if self._instance_id is None:
            self._send_leave(moment, request_id, stall.leave)
            self.member_id = ""
            self._plan_join(ReactionKind.POLLED, moment.at_ms)
        elif stall.span.to_ms is not None:
            self._plan_heartbeat(stall.span.to_ms)

    def _send_leave(self, moment: LogMoment, request_id: str, recorded: SentRequest) -> None:
        """Send the recorded LeaveGroup with the member's ids in the simulation."""
        assert isinstance(recorded.request, LeaveGroup)
        (leaving,) = recorded.request.members
        members = [replace(leaving, member_id=self.member_id, group_instance_id=self._instance_id)]
        self._environment.send(self, moment, request_id, replace(recorded.request, members=members))

    def _recorded_join(self, at_ms: int) -> JoinGroup:
        """Return the process's last JoinGroup in the log up to this time, or else its first one."""
        joins_until = [request for sent_ms, request in self._process.joins if sent_ms <= at_ms]
        return joins_until[-1] if joins_until else self._process.joins[0][1]

    def _protocols(self, at_ms: int) -> list[RequestProtocol]:
        """Return the protocols that the client would offer in a JoinGroup at this time."""
        return protocols_of(
            self._recorded_join(at_ms), self._changes.assignors, self._held, self._last_assignment
        )

    def _common(self) -> Header:
        """Return the fields that the client's Heartbeats and SyncGroups share."""
        return header_of(self._process.joins[0][1], _API_VERSION)
