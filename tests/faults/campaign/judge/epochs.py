"""Groups of the consumer protocol: no member expires or is fenced that kept its word, and no partition is
used by two members at a time.

A member keeps its word if it sends a heartbeat in each session timeout, in the log's time, with the epoch of
its last answer. It uses the partitions that an answer gives it, until it sends a heartbeat without them, or
leaves, or is removed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.members import answer_error
from tests.faults.campaign.judge.topics import Answer, Event, Evidence, Owned, Request
from tests.faults.campaign.judge.verdicts import Violation

NONE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID = 0, 25, 82
FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH = 110, 113
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
HEARTBEAT = "ConsumerGroupHeartbeat"
REMOVED = "MemberRemoved"
NOTHING: Owned = frozenset()


@dataclass
class Member:
    """A member as its answers show it.

    `had_epoch` is the epoch before the last answer. `given` has the partitions that the last answer lets it
    use, `used` those that it uses. `heard_ms` is the time of its last heartbeat. `revokes_since_ms` is when
    it was asked to give up partitions that it still uses.
    """

    epoch: int = JOINS
    had_epoch: int = JOINS
    given: Owned = NOTHING
    used: Owned = NOTHING
    heard_ms: int = 0
    rebalance_ms: int = 0
    revokes_since_ms: int = 0
    is_away: bool = False


def judge_epochs(evidence: Evidence, session_ms: int) -> Iterator[Verdict]:
    removals: dict[str, list[Event]] = {}
    for event in evidence.events:
        if event.group_type == "consumer" and event.type == REMOVED:
            removals.setdefault(event.group_id, []).append(event)
    for group_id, requests in evidence.by_group().items():
        if any(request.body.type == HEARTBEAT for request in requests):
            yield from JudgedGroup(group_id, session_ms, evidence, removals.get(group_id, [])).judge(requests)


@dataclass
class JudgedGroup:
    """One group, followed through its requests in the order of the log and its removals by their time."""

    group_id: str
    session_ms: int
    evidence: Evidence
    removals: list[Event]
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """The member id of each instance id."""

    def judge(self, requests: Iterable[Request]) -> Iterator[Verdict]:
        removals = sorted(self.removals, key=lambda event: event.at_ms)
        for request in requests:
            while removals and removals[0].at_ms <= request.clock_ms:
                yield from self._removed(removals.pop(0))
            answer = self.evidence.answered.get(request.id)
            if answer is None:
                continue  # judge_answers says whether it is lost
            error = answer_error(request, answer)
            if error != NONE:
                yield from self._refused(request, error)
            elif request.body.type == HEARTBEAT:
                yield from self._accepted(request, answer)
        for event in removals:
            yield from self._removed(event)

    def _removed(self, event: Event) -> Iterator[Verdict]:
        member = self.members.pop(event.member_id or "", None)
        if event.reason == "left the group":
            return
        reason = "it never joined" if member is None else self._wrong(event, member)
        if reason is not None:
            sentence = f"{event.member_id} was removed ({event.reason}), but {reason}"
            yield Verdict(Violation.EXPIRED, event.at_ms, self.group_id, sentence)

    def _wrong(self, event: Event, member: Member) -> str | None:
        """Return why a removal is wrong, or None if it is right."""
        if "revoke" in event.reason:
            if not member.used - member.given:
                return "it has nothing to revoke"
            had_ms = event.at_ms - member.revokes_since_ms
            return f"it had {had_ms} ms to revoke" if had_ms < member.rebalance_ms else None
        if event.at_ms - member.heard_ms < self.session_ms:
            return f"its last heartbeat stands in the log {event.at_ms - member.heard_ms} ms before"
        outage = self.evidence.outage_between(event.at_ms - self.session_ms, event.at_ms)
        if outage is not None:
            return f"its session of {self.session_ms} ms reaches into the outage {tuple(outage)}"
        return None

    def _refused(self, request: Request, error: int) -> Iterator[Verdict]:
        """Judge a request whose error ends a membership, or reports that the membership has ended."""
        member_id, epoch = request.body.member_id, _epoch(request)
        member = self.members.get(member_id)
        if member is None or epoch is None or member.is_away:
            return
        reason = None
        if error == UNKNOWN_MEMBER_ID:
            if any(event.member_id == member_id for event in self.removals):
                # It stands before the removal and was handled after it, so the removal is judged by it.
                member.heard_ms = request.clock_ms if request.body.type == HEARTBEAT else member.heard_ms
            else:
                reason = "it was never removed"
        elif error in (FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH):
            if epoch == member.epoch:
                reason = f"its epoch {epoch} was answered last"
            elif error == FENCED_MEMBER_EPOCH and _repeats(request, member):
                reason = f"its epoch {epoch} is the one before the last answer, and it has no more than given"
        elif error == FENCED_INSTANCE_ID and self.instances.get(request.body.instance_id or "") == member_id:
            reason = f"nobody took its place as {request.body.instance_id}"
        if reason is not None:
            sentence = f"{member_id} got the error {error} for {request.id}, but {reason}"
            yield Verdict(Violation.EXPIRED, request.at_ms, self.group_id, sentence)

    def _accepted(self, request: Request, answer: Answer) -> Iterator[Verdict]:
        """Apply a heartbeat that was answered without an error, and judge its answer."""
        body, member_id = request.body, request.body.member_id or answer.member_id
        if body.member_epoch == LEAVES:
            self.members.pop(member_id, None)
            return
        member = self.members.setdefault(member_id, Member())
        if body.member_epoch == LEAVES_FOR_A_WHILE:
            member.is_away, member.used = True, member.given
            return
        if body.instance_id is not None:
            self._take_place(body.instance_id, member_id)
        member.is_away, member.heard_ms = False, request.clock_ms
        if body.rebalance_timeout_ms != -1:
            member.rebalance_ms = body.rebalance_timeout_ms
        member.had_epoch, member.epoch = member.epoch, answer.member_epoch
        if body.owned is not None:
            member.used &= body.owned
        if answer.given is not None:
            if not member.used <= answer.given and member.used <= member.given:
                member.revokes_since_ms = request.clock_ms
            member.given = answer.given
            member.used |= answer.given
            yield from self._shared(request, member_id)

    def _take_place(self, instance_id: str, member_id: str) -> None:
        """Let a static member that left temporarily return, perhaps with another id."""
        before = self.instances.get(instance_id, member_id)
        if before != member_id and before in self.members and self.members[before].is_away:
            del self.members[before]
        self.instances[instance_id] = member_id

    def _shared(self, request: Request, member_id: str) -> Iterator[Verdict]:
        given = self.members[member_id].given
        for other_id, other in self.members.items():
            if other_id != member_id and other.used & given:
                numbers = sorted(number for _, number in other.used & given)
                sentence = f"{request.id} gave {member_id} the partitions {numbers}, which {other_id} uses"
                yield Verdict(Violation.OWNERS, request.at_ms, self.group_id, sentence)


def _epoch(request: Request) -> int | None:
    """Return the epoch that a member's request has, None if it has none or ends the membership."""
    body = request.body
    epoch = body.generation_id if body.type == "OffsetCommit" else body.member_epoch
    return epoch if epoch > JOINS else None


def _repeats(request: Request, member: Member) -> bool:
    """Return True if the client lost the last answer and repeats its request, as it should."""
    owned = request.body.owned
    return request.body.member_epoch == member.had_epoch and owned is not None and owned <= member.given
