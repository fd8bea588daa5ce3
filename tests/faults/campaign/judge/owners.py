"""No partition has two owners in one generation, and no queue is locked by two clients at a time."""

import struct
from collections import defaultdict
from collections.abc import Iterator

from tests.faults.campaign.judge.topics import Evidence, Incarnations, Outage, Request
from tests.faults.campaign.judge.verdicts import Verdict, Wrong

LOCK_MAX_LIVE_MS = 60_000


def partitions_of(assignment: bytes) -> list[tuple[str, int]]:
    """Decode an assignment of Kafka's consumer protocol: its version, and partitions by topic."""
    if not assignment:
        return []
    found = []
    (topics,) = struct.unpack_from(">i", assignment, 2)
    at = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        name = assignment[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", assignment, at)
        found += [(name, number) for number in struct.unpack_from(f">{count}i", assignment, at + 4)]
        at += 4 + 4 * count
    return found


def judge_owners(evidence: Evidence) -> Iterator[Verdict]:
    for group_id, requests in evidence.by_group().items():
        lives = evidence.incarnation_at(group_id)
        yield from _judge_leaders(evidence, group_id, requests, lives)
        yield from _judge_assignments(evidence, group_id, requests, lives)


def _judge_leaders(
    evidence: Evidence, group_id: str, requests: list[Request], lives: Incarnations
) -> Iterator[Verdict]:
    leaders: dict[tuple[int, int], str] = {}
    for request in requests:
        answer = evidence.answered.get(request.id)
        if answer is None or answer.error_code or request.body.type != "JoinGroup":
            continue
        leader = leaders.setdefault((lives.at(request.place), answer.generation_id), answer.leader)
        if leader != answer.leader:
            sentence = f"generation {answer.generation_id} has the leaders {leader} and {answer.leader}"
            yield Verdict(Wrong.OWNERS, request.at_ms, group_id, sentence)


def _judge_assignments(
    evidence: Evidence, group_id: str, requests: list[Request], lives: Incarnations
) -> Iterator[Verdict]:
    owners: dict[tuple[int, int, str, int], str] = {}
    dealt: dict[tuple[int, int, str], set[bytes]] = defaultdict(set)
    for request in requests:
        for given in request.body.assignments:
            key = (lives.at(request.place), request.body.generation_id, given.member_id)
            dealt[key].add(given.assignment)
    for request in requests:
        answer = evidence.answered.get(request.id)
        if answer is None or answer.error_code or request.body.type != "SyncGroup":
            continue
        life, generation, member_id = (
            lives.at(request.place),
            request.body.generation_id,
            request.body.member_id,
        )
        if answer.assignment and answer.assignment not in dealt[life, generation, member_id]:
            sentence = f"{request.id} was answered with an assignment that no leader gave {member_id}"
            yield Verdict(Wrong.OWNERS, request.at_ms, group_id, sentence)
        for name, number in partitions_of(answer.assignment):
            owner = owners.setdefault((life, generation, name, number), member_id)
            if owner != member_id:
                sentence = f"{name}-{number} belongs to {owner} and {member_id} in generation {generation}"
                yield Verdict(Wrong.OWNERS, request.at_ms, group_id, sentence)


def judge_locks(evidence: Evidence) -> Iterator[Verdict]:
    for group_id, requests in evidence.by_group().items():
        lives = evidence.incarnation_at(group_id)
        locks: dict[tuple[int, str, int], tuple[str, int]] = {}
        for request in requests:
            answer = evidence.answered.get(request.id)
            if answer is None or answer.code:
                continue
            life = lives.at(request.place)
            if request.body.type == "UNLOCK_BATCH_MQ":
                for queue in request.body.mq_set:
                    if locks.get((life, queue[0], queue[2]), ("", 0))[0] == request.body.client_id:
                        del locks[life, queue[0], queue[2]]
            elif request.body.type == "LOCK_BATCH_MQ":
                for queue in answer.lock_ok_mq_set:
                    holder, at_ms = locks.get((life, queue[0], queue[2]), ("", 0))
                    if holder not in ("", request.body.client_id) and _lives(
                        at_ms, request, evidence.outages
                    ):
                        sentence = (
                            f"{request.id} locked {queue} for {request.body.client_id}, and {holder} has it"
                        )
                        yield Verdict(Wrong.OWNERS, request.at_ms, group_id, sentence)
                    locks[life, queue[0], queue[2]] = (request.body.client_id, request.clock_ms)


def _lives(at_ms: int, request: Request, outages: list[Outage]) -> bool:
    """Whether a lock that was renewed at `at_ms` holds when the request comes. Outages do not count."""
    out_ms = sum(
        max(0, min(outage.until_ms, request.clock_ms) - max(outage.after_ms, at_ms)) for outage in outages
    )
    return request.clock_ms - at_ms - out_ms <= LOCK_MAX_LIVE_MS
