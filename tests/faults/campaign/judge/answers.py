"""Every request is answered or dead-lettered, and all its answers are the same bytes, early ones included."""

from collections.abc import Iterator

from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.topics import UNANSWERED, Evidence
from tests.faults.campaign.judge.verdicts import Violation


def judge_answers(evidence: Evidence) -> Iterator[Verdict]:
    # Kafka never answers a parked request when its member sends a newer one. The history names it.
    superseded = {event.superseded for event in evidence.events if event.superseded}
    for request in evidence.requests:
        answers, early = evidence.answers.get(request.id, {}), evidence.early.get(request.id, {})
        group_id = request.body.group_id
        is_settled = request.id in evidence.dead or request.id in superseded
        if not answers and not is_settled and request.body.type not in UNANSWERED:
            sentence = f"{request.body.type} {request.id} has no answer and no dead letter"
            yield Verdict(Violation.LOST, request.at_ms, group_id, sentence)
        if len(different := answers | early) > 1:
            sentence = (
                f"{request.body.type} {request.id} has {len(different)} different answers: {[*different][:2]}"
            )
            yield Verdict(Violation.DIFFERENT, request.at_ms, group_id, sentence)
        # A request may be skipped, by an operator's decision, after a replica has answered it.
        if early and not answers and request.id not in evidence.dead:
            sentence = f"{request.body.type} {request.id} has an early answer, and none of the query"
            yield Verdict(Violation.DIFFERENT, request.at_ms, group_id, sentence)
    known = {request.id for request in evidence.requests}
    for request_id in (evidence.answers.keys() | evidence.early.keys()) - known:
        yield Verdict(Violation.DIFFERENT, 0, "", f"{request_id} is answered and stands nowhere in the log")


def judge_history(evidence: Evidence) -> Iterator[Verdict]:
    """Check that an entry of a group's history that is written again is the same bytes, and none is
    missing.
    """
    seen: dict[tuple[str, str], set[int]] = {}
    for (group_id, incarnation, seq), entries in evidence.entries.items():
        seen.setdefault((group_id, incarnation), set()).add(seq)
        if len(entries) > 1:
            sentence = f"entry {seq} of its history since {incarnation} was written differently"
            yield Verdict(Violation.DIFFERENT, 0, group_id, sentence)
    for (group_id, incarnation), numbers in seen.items():
        missing = set(range(1, max(numbers) + 1)) - numbers
        if missing:
            sentence = f"its history since {incarnation} has no entry {min(missing)}"
            yield Verdict(Violation.LOST, 0, group_id, sentence)
