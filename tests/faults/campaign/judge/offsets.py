"""Offsets: what a fetch answers is the last acknowledged commit in the order of the log."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import Answer, Evidence, Request
from tests.faults.campaign.judge.transactions import Key, Ledger, Outcomes, judge_outcomes
from tests.faults.campaign.judge.verdicts import Violation

UNSTABLE_OFFSET_COMMIT = 88


def judge_offsets(
    evidence: Evidence, acknowledged: Mapping[tuple[str, int], int], topic: str, outcomes: Outcomes
) -> Iterator[Verdict]:
    """`acknowledged` is the last offset that a client saw acknowledged, by group and partition of `topic`."""
    ledger = Ledger()
    for request, answer in evidence.accepted(evidence.requests):
        if request.body.type == "OffsetFetch":
            yield from _judge_fetch(request, answer, ledger)
        else:
            _enter(request, answer, ledger)
    yield from judge_outcomes(ledger, outcomes)
    for key, offset in ledger.current.items():
        last = evidence.offsets.get(key, -1)
        if evidence.offsets and last != offset:
            sentence = f"the offsets topic has {last} for {key[1:]}, the last acknowledged commit is {offset}"
            yield Verdict(Violation.OFFSET, 0, key[0], sentence)
    for (group_id, partition), offset in acknowledged.items():
        if offset >= 0 and (group_id, partition, offset) not in ledger.moved:
            sentence = f"a client saw {offset} of {topic}-{partition} acknowledged, and no commit of it was"
            yield Verdict(Violation.OFFSET, 0, group_id, sentence)


def _enter(request: Request, answer: Answer, ledger: Ledger) -> None:
    """Apply the changes of a request that was answered without an error."""
    if request.body.type == "OffsetCommit":
        for key, offset in _committed(request, answer):
            ledger.commit(key, offset, request.place)
    elif request.body.type == "TxnOffsetCommit":
        ledger.hold(request, dict(_committed(request, answer)))
    elif request.body.type == "TransactionMarker":
        ledger.end(request)


def _committed(request: Request, answer: Answer) -> Iterator[tuple[Key, int]]:
    """Yield the acknowledged commits."""
    errors = {
        (topic["name"], partition["partition_index"]): partition["error_code"]
        for topic in answer.topics or []
        for partition in topic["partitions"]
    }
    for topic in request.body.topics or []:
        for partition in topic["partitions"]:
            place: tuple[str, int] = (topic["name"], partition["partition_index"])
            if errors.get(place) == 0:
                yield (request.body.group_id, *place), partition["committed_offset"]


def _judge_fetch(request: Request, answer: Answer, ledger: Ledger) -> Iterator[Verdict]:
    topics: list[dict[str, Any]] = answer.topics or []
    for topic in topics:
        for partition in topic["partitions"]:
            key = (request.body.group_id, topic["name"], partition["partition_index"])
            if request.body.require_stable and ledger.is_pending(key):
                error = partition.get("error_code", 0)
                if error != UNSTABLE_OFFSET_COMMIT:
                    sentence = (
                        f"{request.id} fetched {key[1]}-{key[2]}, which is pending, with the error {error}"
                    )
                    yield Verdict(Violation.OFFSET, request.at_ms, request.body.group_id, sentence)
                continue
            expected, found = ledger.current.get(key, -1), partition["committed_offset"]
            if found != expected:
                sentence = (
                    f"{request.id} fetched {found} of {key[1]}-{key[2]}, "
                    f"the last acknowledged commit before it is {expected}"
                )
                yield Verdict(Violation.OFFSET, request.at_ms, request.body.group_id, sentence)
