"""No member expires that kept its word: at least one request in each session timeout, in the log's time.

`epochs.py` judges the members of groups of the consumer protocol.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import Event, Evidence, Request
from tests.faults.campaign.judge.verdicts import Violation

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 0, 25, 27, 79
REMOVED = ("MemberRemoved", "PendingMemberRemoved")
# A request that is answered with one of these shows that the member kept its word. UNKNOWN_MEMBER_ID is among
# them, because that is how a request is answered that stands before the member's wrong end, and is handled
# after it.
KEPT_CODES = (NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID)


def judge_expiries(evidence: Evidence) -> Iterator[Verdict]:
    requests = evidence.by_group()
    events: dict[str, list[Event]] = defaultdict(list)
    for event in evidence.events:
        if event.group_type == "classic":
            events[event.group_id].append(event)
    for group_id, entries in events.items():
        members = _by_member(requests.get(group_id, []))
        sessions = _sessions(requests.get(group_id, []), evidence)
        for place, event in enumerate(entries):
            if event.type not in REMOVED or event.reason == "left the group":
                continue
            of_member = members.get(event.member_id or "", [])
            reason = _wrong(event, of_member, sessions.get(event.member_id or ""), entries[:place], evidence)
            if reason is not None:
                sentence = f"{event.member_id} was removed ({event.reason}), but {reason}"
                yield Verdict(Violation.EXPIRED, event.at_ms, group_id, sentence)
    yield from _forgotten(evidence, requests, events)


def _by_member(requests: list[Request]) -> dict[str, list[Request]]:
    members: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        if request.body.member_id:
            members[request.body.member_id].append(request)
    return members


def _sessions(requests: list[Request], evidence: Evidence) -> dict[str, int]:
    """Return the session timeout of each member: its latest JoinGroup's."""
    sessions = {}
    for request in requests:
        if request.body.type == "JoinGroup":
            answer = evidence.answered.get(request.id)
            member_id = request.body.member_id or ("" if answer is None else answer.member_id)
            sessions[member_id] = request.body.session_timeout_ms
    return sessions


def _wrong(
    event: Event, requests: list[Request], session_ms: int | None, before: list[Event], evidence: Evidence
) -> str | None:
    """Return why this removal is wrong, or None if it is right."""
    if "rejoin" in event.reason:
        since_ms = _latest(before, "PreparingRebalance")
        return _stands(requests, since_ms, event, ("JoinGroup",), evidence)
    if "did not sync" in event.reason:
        since_ms = _latest(before, "CompletingRebalance")
        return _stands(requests, since_ms, event, ("SyncGroup",), evidence)
    if session_ms is None:
        return "no JoinGroup in the log has its id"
    if event.type == "PendingMemberRemoved":
        return _wrong_pending(event, requests, session_ms, before, evidence)
    since_ms = event.at_ms - session_ms
    if (outage := evidence.outage_between(since_ms, event.at_ms)) is not None:
        return f"its session of {session_ms} ms reaches into the outage {tuple(outage)}"
    return _stands(requests, since_ms, event, ("Heartbeat", "OffsetCommit"), evidence) or _answered_since(
        requests, since_ms, event, before, evidence
    )


def _wrong_pending(
    event: Event, requests: list[Request], session_ms: int, before: list[Event], evidence: Evidence
) -> str | None:
    """Return why an id ended too early: one given before an outage has as much time left after it (row
    F5).
    """
    given = (one for one in before if one.type == "MemberIdAssigned" and one.member_id == event.member_id)
    given_ms = next((one.at_ms for one in given), 0)
    had_ms = event.at_ms - given_ms - evidence.outage_ms(given_ms, event.at_ms)
    if had_ms < session_ms:
        return f"it had its id for {had_ms} ms outside of outages, and its session is {session_ms} ms"
    return _stands(requests, given_ms, event, ("JoinGroup",), evidence)


def _answered_since(
    requests: list[Request], since_ms: int, event: Event, before: list[Event], evidence: Evidence
) -> str | None:
    """Name a JoinGroup or SyncGroup whose late answer restarted the session after `since_ms`, or return None.
    An answer that waited for no other member does not restart it (row S9 of docs/rules.md).
    """
    formed = {one.generation: one.at_ms for one in before if one.type == "CompletingRebalance"}
    stable = {one.generation: one.at_ms for one in before if one.type == "Stable"}
    for request, answer in evidence.accepted(requests, "JoinGroup", "SyncGroup"):
        is_join = request.body.type == "JoinGroup"
        generation = answer.generation_id if is_join else request.body.generation_id
        at_ms = (formed if is_join else stable).get(generation, -1)
        if request.clock_ms < at_ms and since_ms < at_ms < event.at_ms:
            return f"{request.body.type} {request.id} was answered {event.at_ms - at_ms} ms before"
    return None


def _latest(events: list[Event], kind: str) -> int:
    return max((event.at_ms for event in events if event.type == kind), default=0)


def _stands(
    requests: list[Request], since_ms: int, event: Event, kinds: tuple[str, ...], evidence: Evidence
) -> str | None:
    """Name a request of the member between two times, which shows that it kept its word, or return None."""
    for request in requests:
        if request.body.type in kinds and since_ms < request.clock_ms < event.at_ms:
            answer = evidence.answered.get(request.id)
            error = NONE if answer is None else answer_error(request, answer)
            if error in KEPT_CODES:
                ago_ms = event.at_ms - request.clock_ms
                return f"{request.body.type} {request.id} stands in the log {ago_ms} ms before"
    return None


def answer_error(request: Request, answer: object) -> int:
    """Return the error code of an answer; of a commit, that of its first partition."""
    code = int(getattr(answer, "error_code", 0))
    topics = getattr(answer, "topics", None)
    if code == NONE and request.body.type in ("OffsetCommit", "TxnOffsetCommit") and topics:
        return int(topics[0]["partitions"][0]["error_code"])
    return code


def _forgotten(
    evidence: Evidence, requests: dict[str, list[Request]], events: dict[str, list[Event]]
) -> Iterator[Verdict]:
    """Check that each member that the coordinator no longer knows was removed according to the history."""
    for group_id, of_group in requests.items():
        removed = {
            member_id
            for event in events.get(group_id, [])
            for member_id in (event.member_id if event.type in REMOVED else None, event.replaced_member_id)
            if member_id
        }
        known: set[str] = set()
        for request in of_group:
            answer = evidence.answered.get(request.id)
            if answer is None:
                continue
            if request.body.type == "JoinGroup" and answer.error_code in (NONE, MEMBER_ID_REQUIRED):
                known.add(answer.member_id)
            member_id = request.body.member_id
            unknown = answer_error(request, answer) == UNKNOWN_MEMBER_ID
            if unknown and member_id in known - removed:
                sentence = f"{member_id} is unknown to {request.id}, and was never removed"
                yield Verdict(Violation.EXPIRED, request.at_ms, group_id, sentence)


def judge_clients(evidence: Evidence, client_expiry_ms: int) -> Iterator[Verdict]:
    """Judge removals of RocketMQ's connections in the same way. Each connection sends heartbeats."""
    beats: dict[tuple[str, str], list[int]] = defaultdict(list)
    for request in evidence.requests:
        if request.body.type == "HEART_BEAT_CONSUMER":
            beats[request.body.group_id, request.body.connection].append(request.clock_ms)
    for event in evidence.events:
        if event.type != "ConsumerRemoved" or not event.cause.startswith("scan"):
            continue
        since_ms = event.at_ms - client_expiry_ms
        times = [at for at in beats[event.group_id, event.connection or ""] if since_ms <= at < event.at_ms]
        outage = evidence.outage_between(since_ms, event.at_ms)
        if times or outage is not None:
            because = f"a heartbeat stands in the log at {times[-1]}" if times else f"of the {outage}"
            sentence = f"{event.connection} was removed at {event.at_ms} as silent, but {because}"
            yield Verdict(Violation.EXPIRED, event.at_ms, event.group_id, sentence)
