"""A simulated client of the consumer, share or streams protocol. It repeats a process of the log, with the
process's reactions, against a coordinator that may respond differently than in the log.

It behaves as Kafka's clients do. It sends heartbeats at the interval that the last answer required. It first
gives up revoked partitions, and then reports its assignment. After it was fenced, it joins again.
"""

from functools import partial
from typing import Any

from msgspec.structs import replace

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.messages import ErrorCode
from operations.whatif.changes import Changes
from operations.whatif.epoch_clients import reaction_to
from operations.whatif.epoch_requests import (
    FENCED,
    EpochResponse,
    assignment_in,
    has_report,
    lasting_fields,
    report_fields,
    update_fields,
)
from operations.whatif.facts import (
    EpochHeartbeat,
    EpochProcess,
    EpochReactionKind,
    LogMoment,
    Report,
    SentHeartbeat,
    SentRequest,
)
from operations.whatif.process import (
    SeenReactions,
    SimulatedProcess,
    SimulationEnvironment,
    header_of,
)


class SimulatedMember(SimulatedProcess[EpochProcess]):
    """A simulated process of the consumer, share or streams protocol. Its epoch is 0 while it is not a
    member.
    """

    def __init__(self, process: EpochProcess, changes: Changes, environment: SimulationEnvironment) -> None:
        super().__init__(process, changes, environment)
        self._first_request = process.starts.request
        self.member_id = self._first_request.member_id
        self._seen = {kind: SeenReactions(process.reactions.get(kind, ())) for kind in EpochReactionKind}
        self._seen_heartbeats = {
            interval_ms: SeenReactions(heartbeats) for interval_ms, heartbeats in process.beats.items()
        }
        self._epoch = 0
        self._interval_ms = 0  # the heartbeat interval of the last answer
        self._assigned: Report = {}  # the last assignment that an answer had
        self._updates: dict[str, Any] = {}  # the fields that the next heartbeat adds
        self._due_reaction: EpochReactionKind | None = None  # the kind of the reaction that it has to send
        self._reaction_plan: object | None = None  # to send that reaction

    def begin(self) -> None:
        super().begin()
        for update in self._process.updates:
            self._schedule(update, partial(self._add_update, update))

    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        if not isinstance(response, EpochResponse) or self._has_stopped:
            return
        if response.error_code is not ErrorCode.NONE:
            self._handle_error(at_ms, response.error_code)
            return
        self.member_id = response.member_id or self.member_id
        self._epoch, self._interval_ms = response.member_epoch, response.heartbeat_interval_ms
        assignment = assignment_in(response)
        if assignment is not None:
            kind = reaction_to(self._assigned, assignment)
            self._assigned = assignment
            if kind is not None and kind is not self._due_reaction:
                self._plan_reaction(kind, at_ms)
        self._plan_heartbeat(at_ms)

    def _handle_error(self, at_ms: int, error: ErrorCode) -> None:
        """Join again if the member was fenced. Give up after another error, unless the process continued
        after it in the log.
        """
        self._heartbeat_plan = self._due_reaction = None
        if error in FENCED:
            self._epoch, self._assigned = 0, {}
            self._plan_reaction(EpochReactionKind.FENCED, at_ms)
        elif self._seen[EpochReactionKind.ERROR].in_progress_at(at_ms) is None:
            self._has_stopped = True
        else:
            self._plan_reaction(EpochReactionKind.ERROR, at_ms)

    def _plan_reaction(self, kind: EpochReactionKind, at_ms: int) -> None:
        """Plan the heartbeat of this reaction. If another one reports the assignment first, it is dropped."""
        self._due_reaction = kind
        plan = self._reaction_plan = object()

        def is_valid() -> bool:
            return self._due_reaction is not None and plan is self._reaction_plan

        react = partial(self._send, is_report=True)
        usual_ms, pauses = self._process.usual_ms.get(kind), self._process.pauses
        self._schedule_reaction(self._seen[kind], usual_ms, pauses, at_ms, react, is_valid)

    def _plan_heartbeat(self, at_ms: int) -> None:
        """Plan the next regular heartbeat, after the interval that the last answer required."""
        plan = self._heartbeat_plan = object()
        usual_ms = max(1, self._interval_ms + self._process.late_ms)
        seen_heartbeats = self._seen_heartbeats.get(self._interval_ms)
        self._schedule_reaction(
            seen_heartbeats,
            usual_ms,
            self._process.pauses,
            at_ms,
            self._send,
            lambda: plan is self._heartbeat_plan,
        )

    def _send(self, moment: LogMoment, request_id: str, *, is_report: bool = False) -> None:
        """Send a heartbeat, and drop the plan for the next one. The answer plans a new one.

        A due reaction is done as soon as a heartbeat reports the assignment.
        """
        if self._is_over(moment):
            return
        self._heartbeat_plan = None
        request = self._request(moment, request_id, is_report=is_report)
        if request.member_epoch > 0:  # a request to join has all fields
            request = replace(request, **self._updates)
        self._updates = {}
        if request.member_epoch == 0 and self._due_reaction is EpochReactionKind.ERROR:
            self.member_id = request.member_id or self.member_id  # the refused client was started again
        if has_report(request):
            self._due_reaction = None
        self._environment.send(self, moment, request_id, self._with_member_fields(request))

    def _request(self, moment: LogMoment, request_id: str, *, is_report: bool) -> EpochHeartbeat:
        """Return the recorded request of this id as the member would send it now, or else a new one."""
        recorded = self._process.requests.get(request_id)
        if recorded is None:
            # The epoch -1 is replaced below.
            request = type(self._first_request)(
                **header_of(self._first_request, self._first_request.api_version), member_epoch=-1
            )
        else:
            request = recorded.request
        if self._epoch == 0:
            return request if request.member_epoch == 0 else self._join_request(moment)
        if self._process.known.get(request_id) == (self._epoch, self._assigned):  # the same as in the log
            return request  # unchanged: if an answer was lost in the log, its epoch is older
        if is_report or has_report(request):
            request = replace(request, **report_fields(self._assigned))
        return replace(request, member_epoch=self._epoch)

    def _join_request(self, moment: LogMoment) -> EpochHeartbeat:
        """Return a request to join with the fields that are in force at this moment."""
        fields: dict[str, Any] = {}
        for sent in self._process.requests.values():
            if sent.moment <= moment:
                fields |= lasting_fields(sent.request)
        return replace(self._first_request, **fields)

    def _with_member_fields(self, request: EpochHeartbeat) -> EpochHeartbeat:
        """Return the request with the member's ids, and with the assignor that the experiment requests."""
        fields: dict[str, Any] = {"member_id": self.member_id}
        if self._changes.static:
            fields["instance_id"] = self._process.client
        elif not isinstance(self._first_request, ShareGroupHeartbeat):
            fields["instance_id"] = self._first_request.instance_id
        if self._changes.remote_assignor is not None:
            fields["server_assignor"] = self._changes.remote_assignor
        return replace(request, **fields)

    def _join(self, moment: LogMoment, request_id: str) -> None:
        """Join with epoch 0, at the start or by the process's own decision."""
        self._epoch, self._assigned = 0, {}
        self._send(moment, request_id)

    def _add_update(self, update: SentHeartbeat, moment: LogMoment, request_id: str) -> None:
        """Add an update to the next heartbeat. A request to join ignores it, because it already has all
        fields in force.
        """
        self._updates |= update_fields(update.request)

    def _commit(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Commit as in the log if the process is a member at this time."""
        if self._epoch > 0 and not self._is_over(moment):
            request = replace(sent.request, member_id=self.member_id, generation_id=self._epoch)
            self._environment.send(self, moment, request_id, request)

    def _leave(self, sent: SentHeartbeat, moment: LogMoment, request_id: str) -> None:  # type: ignore[override]
        """Stop, and leave. A member that the experiment makes static leaves only temporarily (epoch -2)."""
        if self.member_id and not self._has_stopped:
            request = sent.request
            if self._changes.static:
                request = replace(request, member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH)
            self._environment.send(self, moment, request_id, self._with_member_fields(request))
        self._has_stopped = True
