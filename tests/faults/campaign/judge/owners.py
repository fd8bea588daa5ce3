"""No partition has two owners in one generation, and no queue is locked by two clients at a time."""

import struct
from collections import defaultdict
from collections.abc import Iterator

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import Evidence, Incarnations, Request
from tests.faults.campaign.judge.verdicts import Violation

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
    for request, answer in evidence.accepted(requests, "JoinGroup"):
        leader = leaders.setdefault((lives.at(request.place), answer.generation_id), answer.leader)
        if leader != answer.leader:
            sentence = f"generation {answer.generation_id} has the leaders {leader} and {answer.leader}"
            yield Verdict(Violation.OWNERS, request.at_ms, group_id, sentence)


def _judge_assignments(
    evidence: Evidence, group_id: str, requests: list[Request], lives: Incarnations
) -> Iterator[Verdict]:
    owners: dict[tuple[int, int, str, int], str] = {}
    dealt: dict[tuple[int, int, str], set[bytes]] = defaultdict(set)
    for request in requests:
        for given in request.body.assignments:
            key = (lives.at(request.place), request.body.generation_id, given.member_id)
            dealt[key].add(given.assignment)
    for request, answer in evidence.accepted(requests, "SyncGroup"):
        generation, member_id = request.body.generation_id, request.body.member_id
        life = lives.at(request.place)
        if answer.assignment and answer.assignment not in dealt[life, generation, member_id]:
            sentence = f"{request.id} was answered with an assignment that no leader gave {member_id}"
            yield Verdict(Violation.OWNERS, request.at_ms, group_id, sentence)
        for name, number in partitions_of(answer.assignment):
            owner = owners.setdefault((life, generation, name, number), member_id)
            if owner != member_id:
                sentence = f"{name}-{number} belongs to {owner} and {member_id} in generation {generation}"
                yield Verdict(Violation.OWNERS, request.at_ms, group_id, sentence)


def judge_locks(evidence: Evidence) -> Iterator[Verdict]:
    for group_id, requests in evidence.by_group().items():
        lives = evidence.incarnation_at(group_id)
        locks: dict[tuple[int, str, int], tuple[str, int]] = {}
        for request, answer in evidence.accepted(requests, "UNLOCK_BATCH_MQ", "LOCK_BATCH_MQ"):
            if answer.code:
                continue
            life, client_id = lives.at(request.place), request.body.client_id
            is_lock = request.body.type == "LOCK_BATCH_MQ"
            for queue in answer.lock_ok_mq_set if is_lock else request.body.mq_set:
                key = (life, queue[0], queue[2])
                holder, at_ms = locks.get(key, (client_id, 0))
                if is_lock:
                    # Outages do not count.
                    held_ms = request.clock_ms - at_ms - evidence.outage_ms(at_ms, request.clock_ms)
                    if holder != client_id and held_ms <= LOCK_MAX_LIVE_MS:
                        sentence = f"{request.id} locked {queue} for {client_id}, and {holder} has it"
                        yield Verdict(Violation.OWNERS, request.at_ms, group_id, sentence)
                    locks[key] = (client_id, request.clock_ms)
                elif holder == client_id:
                    locks.pop(key, None)
