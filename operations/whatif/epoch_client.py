"""A simulated client of the consumer, share or streams protocol: a process of the log, with its reactions,
against a coordinator that may respond differently than in the log.

It behaves as Kafka's clients do: it sends heartbeats at the interval that the last answer required, reports
what it was assigned after it has given up the rest, and joins again after it was fenced.
"""

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
    assigned,
    lasting_fields,
    report_fields,
    reports,
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
    Action,
    SeenReactions,
    SimulatedProcess,
    SimulationEnvironment,
    header_of,
)


class SimulatedMember(SimulatedProcess):
    """A simulated process of the consumer, share or streams protocol. Its epoch is 0 while it is not a
    member.
    """

    def __init__(self, process: EpochProcess, changes: Changes, environment: SimulationEnvironment) -> None:
        super().__init__(process, changes, environment)
        self._process = process
        self._first = process.starts.request
        self.member_id = self._first.member_id
        self._seen = {kind: SeenReactions(process.reactions.get(kind, ())) for kind in EpochReactionKind}
        self._beats = {interval_ms: SeenReactions(beats) for interval_ms, beats in process.beats.items()}
        self._epoch = 0
        self._interval_ms = 0
        self._assigned: Report = {}
        self._due: EpochReactionKind | None = None
        self._due_plan = 0  # the number of the valid plan to react
        self._beat_plan = 0  # likewise for heartbeats

    def begin(self) -> None:
        process, at = self._process, self._environment.at
        at(process.starts.moment, process.starts.request_id, self._send)
        for update in process.updates:
            at(update.moment, update.request_id, self._update(update))
        for commit in process.commits:
            at(commit.moment, commit.request_id, self._commit(commit))
        if process.leave is not None:
            at(process.leave.moment, process.leave.request_id, self._leave)

    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        if not isinstance(response, EpochResponse) or self._over:
            return
        if response.error_code is not ErrorCode.NONE:
            self._failed(at_ms, response.error_code)
            return
        self.member_id = response.member_id or self.member_id
        self._epoch, self._interval_ms = response.member_epoch, response.heartbeat_interval_ms
        given = assigned(response)
        if given is not None:
            kind = reaction_to(self._assigned, given)
            self._assigned = given
            if kind is not None and kind is not self._due:
                self._plan_reaction(kind, at_ms)
        self._plan_beat(at_ms)

    def _failed(self, at_ms: int, error: ErrorCode) -> None:
        """Join again if the member was fenced. Give up after another error, unless the process continued
        after it in the log.
        """
        self._beat_plan, self._due = 0, None
        if error in FENCED:
            self._epoch, self._assigned = 0, {}
            self._plan_reaction(EpochReactionKind.FENCED, at_ms)
        elif self._seen[EpochReactionKind.ERROR].at(at_ms) is None:
            self._over = True
        else:
            self._plan_reaction(EpochReactionKind.ERROR, at_ms)

    def _plan_reaction(self, kind: EpochReactionKind, at_ms: int) -> None:
        self._due = kind
        plan = self._due_plan = self._new_plan()

        def react(moment: LogMoment, request_id: str) -> None:
            self._send(moment, request_id, is_report=True)

        def is_valid() -> bool:
            return self._due is not None and plan == self._due_plan

        usual_ms, pauses = self._process.usual_ms.get(kind), self._process.pauses
        self._react(self._seen[kind], usual_ms, pauses, at_ms, react, is_valid)

    def _plan_beat(self, at_ms: int) -> None:
        plan = self._beat_plan = self._new_plan()
        usual_ms = max(1, self._interval_ms + self._process.late_ms)
        beats = self._beats.get(self._interval_ms)
        self._react(beats, usual_ms, self._process.pauses, at_ms, self._send, lambda: plan == self._beat_plan)

    def _send(self, moment: LogMoment, request_id: str, *, is_report: bool = False) -> None:
        if self._is_over(moment):
            return
        self._beat_plan = 0
        request = self._request(moment, request_id, is_report=is_report)
        if request.member_epoch == 0 and self._due is EpochReactionKind.ERROR:
            self.member_id = request.member_id or self.member_id  # the refused client was started again
        if reports(request):
            self._due = None
        self._environment.send(self, moment, request_id, self._of_member(request))

    def _request(self, moment: LogMoment, request_id: str, *, is_report: bool) -> EpochHeartbeat:
        """Return the recorded request of this id as the member would send it now, or else a new one."""
        recorded = self._process.requests.get(request_id)
        if recorded is None:
            request = type(self._first)(**header_of(self._first, self._first.api_version), member_epoch=-1)
        else:
            request = recorded.request
        if self._epoch == 0:
            return request if request.member_epoch == 0 else self._join(moment)
        if self._process.known.get(request_id) == (self._epoch, self._assigned):
            return request  # an answer may have been lost, so its epoch may be another one
        if is_report or reports(request):
            request = replace(request, **report_fields(self._assigned))
        return replace(request, member_epoch=self._epoch)

    def _join(self, moment: LogMoment) -> EpochHeartbeat:
        """Return a request to join with the fields that are in force at this moment."""
        fields: dict[str, Any] = {}
        for sent in self._process.requests.values():
            if sent.moment <= moment:
                fields |= lasting_fields(sent.request)
        return replace(self._first, **fields)

    def _of_member(self, request: EpochHeartbeat) -> EpochHeartbeat:
        """Return the request with the member's ids, and with the assignor that the experiment requests."""
        fields: dict[str, Any] = {"member_id": self.member_id}
        if self._changes.static:
            fields["instance_id"] = self._process.client
        elif not isinstance(self._first, ShareGroupHeartbeat):
            fields["instance_id"] = self._first.instance_id
        if self._changes.remote_assignor is not None:
            fields["server_assignor"] = self._changes.remote_assignor
        return replace(request, **fields)

    def _update(self, update: SentHeartbeat) -> Action:
        """Send an update, if the process is a member then or joins again by it."""

        def send(moment: LogMoment, request_id: str) -> None:
            if update.request.member_epoch == 0:
                self._epoch, self._assigned = 0, {}
            elif self._epoch == 0:
                return
            self._send(moment, request_id)

        return send

    def _commit(self, sent: SentRequest) -> Action:
        """Commit as in the log, if the process is a member then."""

        def commit(moment: LogMoment, request_id: str) -> None:
            if self._epoch > 0 and not self._is_over(moment):
                request = replace(sent.request, member_id=self.member_id, generation_id=self._epoch)
                self._environment.send(self, moment, request_id, request)

        return commit

    def _leave(self, moment: LogMoment, request_id: str) -> None:
        """Stop. A member that the experiment makes static leaves for a while."""
        leave = self._process.leave
        if self.member_id and not self._over and leave is not None:
            request = leave.request
            if self._changes.static:
                request = replace(request, member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH)
            self._environment.send(self, moment, request_id, self._of_member(request))
        self._over = True
