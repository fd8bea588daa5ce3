"""A simulated client: a process of the log, with its reactions, against a coordinator that may respond
differently than in the log.

It behaves as Kafka's consumer does with the classic protocol: it joins, syncs, sends heartbeats, and joins
again when a response requires it.
"""

from collections.abc import Callable
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
from operations.whatif.process import (
    Action,
    SeenReactions,
    SimulatedProcess,
    SimulationEnvironment,
    header_of,
)

# The version of simulated Heartbeats and SyncGroups. Newer SyncGroups have to name their protocol; these do.
_API_VERSION: Final = 4


class SimulatedClient(SimulatedProcess):
    """A simulated process of the classic protocol."""

    def __init__(
        self,
        process: ClassicProcess,
        fleet: ClientFleet,
        changes: Changes,
        environment: SimulationEnvironment,
    ) -> None:
        super().__init__(process, changes, environment)
        self._process = process
        self._fleet = fleet
        self._instance_id = process.client if changes.static else process.joins[0][1].group_instance_id
        self._seen = {kind: SeenReactions(process.reactions.get(kind, ())) for kind in ReactionKind}
        self._generation = -1
        self._sync: SyncGroup | None = None
        self._held: frozenset[TopicPartition] = frozenset()
        self._claim: Claim | None = None
        self._waits: type[JoinGroup] | type[SyncGroup] | None = None
        self._join_plan = 0  # the number of the valid plan to join; 0: there is none
        self._beat_plan = 0  # likewise for heartbeats

    def begin(self) -> None:
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
        plan = self._join_plan = self._new_plan()
        self._plan(kind, at_ms, self._join, lambda: plan == self._join_plan)

    def _plan_sync(self, kind: ReactionKind, at_ms: int, request: SyncGroup) -> None:
        self._sync = request

        def sync(moment: LogMoment, request_id: str) -> None:
            self._sync, self._waits = None, SyncGroup
            self._environment.send(self, moment, request_id, request)

        self._plan(kind, at_ms, sync, lambda: self._sync is request)

    def _plan_beat(self, at_ms: int) -> None:
        plan = self._beat_plan = self._new_plan()

        def beat(moment: LogMoment, request_id: str) -> None:
            self._beat(moment, request_id)
            if plan == self._beat_plan:
                self._plan_beat(moment.at_ms)

        self._plan(ReactionKind.HEARTBEAT, at_ms, beat, lambda: plan == self._beat_plan)

    def _plan(self, kind: ReactionKind, at_ms: int, action: Action, is_valid: Callable[[], bool]) -> None:
        """Schedule a reaction to a current event. It is dropped if it is no longer valid at its time."""
        reactions: SeenReactions | None = self._seen[kind]
        usual_ms, silent = self._process.usual_ms[kind], list(self._process.pauses)
        if kind is not ReactionKind.HEARTBEAT:
            silent += [stall.span for stall in self._process.stalls]
        elif self._changes.heartbeat_interval_ms is not None:
            reactions, usual_ms = None, self._changes.heartbeat_interval_ms
        self._react(reactions, usual_ms, silent, at_ms, action, is_valid)

    def _stop_beats(self) -> None:
        self._beat_plan = 0

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
        return header_of(self._process.joins[0][1], _API_VERSION)
