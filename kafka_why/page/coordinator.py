"""The coordinator itself, for its page and `/api/coordinator`: whether it answers, and what needs attention.

The topics' content is always known. The rest is known only to the coordinator's process and comes from its
state. Unknown values are shown as unknown, never as 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from kafka_why.contract.claims import Claim
from kafka_why.contract.history_reader import CoordinatorStarted
from kafka_why.contract.service import (
    NO_REPLICA_STATE,
    ReplicaState,
    ServicePhase,
    TransactionsSummary,
)
from kafka_why.page.topics_followers import DeadLetterLine, PendingTransactionLine, ServiceFacts
from kafka_why.page.words import thousands
from kafka_why.service_state import Durations, ServiceState, Unreadable
from kafka_why.wording import count, duration_text

MAX_SHOWN = 50
"""Maximum number of dead letters on the page."""
UNKNOWN = "not known"
_READ_S = 5
_CLOCK_MS = 30_000
"""An older clock record says nothing about the present, because later polls for one have failed."""
_OBSERVED = "These groups are the cluster's own coordinator's"
_MAX_TEXT_CHARS = 500


class CoordinatorSection(Struct, frozen=True):
    """A section of the page. Rows have a label and a text."""

    title: str
    rows: list[tuple[str, str]]


class RequestLatency(Struct, frozen=True):
    """The durations of requests of one type."""

    of: str
    name: str
    durations: Durations


class CoordinatorStart(Struct, frozen=True, kw_only=True):
    """A start of a coordinator within the last hour."""

    at_ms: int
    from_batch: int
    code_version: str
    epoch: int
    skipped: list[str]
    settings: dict[str, object]


class CoordinatorPage(Struct, frozen=True, kw_only=True):
    """The data of the page of a coordinator, or of an observer."""

    now_ms: int
    sentence: str
    findings: list[str]  # need a person's attention
    service: ServiceState | None
    no_metrics: str  # why `service` is None
    sections: list[CoordinatorSection]
    latencies: list[RequestLatency]
    claim: Claim | None
    starts: list[CoordinatorStart]
    dead_letters: list[DeadLetterLine]  # the newest
    reasons: dict[str, int]  # counts of dead letters of the last hour
    letters: str
    is_read: bool  # the topics have been read to their ends
    pending: list[PendingTransactionLine]
    pending_number: int
    is_observed: bool = False


def coordinator_page(
    topics: ServiceFacts,
    starts: Iterable[CoordinatorStarted],
    polled: ServiceState | Unreadable | None,
    read_age_s: float,
    now_ms: int,
) -> CoordinatorPage:
    """Return the data of the page. `read_age_s` is the age of the last read of the topics.

    `polled` is the state of the process, the error if it does not answer, or None if its address is unknown.
    """
    is_read = read_age_s <= _READ_S
    known = [_start(one) for one in starts]
    service = polled if isinstance(polled, ServiceState) else None
    return CoordinatorPage(
        now_ms=now_ms,
        sentence=_sentence(topics, service, is_read, now_ms),
        findings=[
            *(_findings_of_observer(polled) if topics.is_observed else _findings(topics, service, is_read))
        ],
        service=service,
        no_metrics=_no_metrics(polled),
        is_observed=topics.is_observed,
        sections=[] if service is None else list(_sections(service, is_observed=topics.is_observed)),
        latencies=[] if service is None else list(_latencies(service)),
        claim=topics.claim,
        starts=sorted(known, key=lambda one: -one.at_ms),
        dead_letters=topics.dead_letters[:MAX_SHOWN],
        reasons=dict(Counter(letter.reason for letter in topics.dead_letters).most_common()),
        letters=_dead_letters_text(topics, is_read),
        is_read=is_read and topics.is_complete,
        pending=topics.pending,
        pending_number=topics.pending_number,
    )


def _start(entry: CoordinatorStarted) -> CoordinatorStart:
    return CoordinatorStart(
        at_ms=entry.at_ms,
        from_batch=entry.from_batch,
        code_version=entry.code_version,
        epoch=entry.owner_epoch,
        skipped=entry.skip,
        settings=dict(entry.settings),
    )


def _sentence(topics: ServiceFacts, service: ServiceState | None, is_read: bool, now_ms: int) -> str:
    """Return a summary such as `The coordinator answers: replica answering, 2 ms behind; ...`"""
    if topics.is_observed:
        parts = [_OBSERVED, _observer_text(service)]
    elif service is None:
        parts = [_topics_text(topics, is_read, now_ms)]
    else:
        parts = [_service_text(service), _last_batch(service)]
    return f"{'; '.join([*parts, _dead_letters_text(topics, is_read)])}."


def _observer_text(service: ServiceState | None) -> str:
    if service is None:
        return f"whether the observer runs is {UNKNOWN}"
    if service.status.phase is not ServicePhase.READY:
        return f"the observer does not write: {_why(service)}"
    return f"the observer runs, {_last_batch(service)}"


def _no_metrics(polled: ServiceState | Unreadable | None) -> str:
    if polled is None:
        return "no address of its metrics is known"
    return f"its metrics do not answer: {polled}" if isinstance(polled, Unreadable) else ""


def _service_text(service: ServiceState) -> str:
    if service.status.phase is ServicePhase.STANDBY:
        return "This coordinator is a standby: another one owns the topics, and it waits until that one ends"
    if not answers_clients(service):
        return f"The coordinator does not answer: {_why(service)}"
    return f"The coordinator answers: {_replica(service)}"


def answers_clients(service: ServiceState) -> bool:
    """Return True if the query or the replica answers clients."""
    phase = service.status.phase
    is_answering = service.replica is not None and service.replica.is_answering
    return phase is ServicePhase.READY or (is_answering and phase is not ServicePhase.STOPPED)


def _replica(service: ServiceState) -> str:
    replica = service.replica or NO_REPLICA_STATE
    if replica.phase == NO_REPLICA_STATE.phase:
        return "without a replica"
    if not replica.is_answering:
        return f"by batches, replica {replica.phrase[:_MAX_TEXT_CHARS]}"
    return f"replica answering, {duration_text(replica.lag_ms)} behind"


def _last_batch(service: ServiceState) -> str:
    if service.batches.age_ms is None:
        return "no batch since its start"
    return f"last batch {duration_text(service.batches.age_ms)} ago"


def _topics_text(topics: ServiceFacts, is_read: bool, now_ms: int) -> str:
    if not is_read or topics.is_silent is None:
        why = "the topics are being read" if is_read else "no broker answers"
        return f"Whether a coordinator runs is not known: {why}"
    if topics.is_silent:
        in_order = topics.claim is not None and topics.claim.is_released
        ended = ", and the last one ended in order" if in_order else ""
        return f"No coordinator runs: no clock record arrives{ended}"
    age_ms = max(now_ms - (topics.clock_ms or now_ms), 0)
    if age_ms > _CLOCK_MS:
        return f"Whether a coordinator runs is not known: it was last seen {duration_text(age_ms)} ago"
    return f"A coordinator runs: it attested the time {duration_text(age_ms)} ago"


def _dead_letters_text(topics: ServiceFacts, is_read: bool) -> str:
    """Return a text such as `3 dead letters in the last hour`."""
    if not is_read:
        return "dead letters are not known now"
    if not topics.is_complete:
        return "dead letters are not read yet"
    number = len(topics.dead_letters)
    if not number and not topics.has_more:
        return "no dead letters in the last hour"
    least = "at least " if topics.has_more else ""
    return f"{least}{thousands(number)} dead letter{'' if number == 1 else 's'} in the last hour"


def _findings(topics: ServiceFacts, service: ServiceState | None, is_read: bool) -> Iterator[str]:
    if service is None:
        if is_read and topics.is_silent:
            yield "No group is coordinated: start the coordinator, or read its log"
        return
    if service.status.alarm is not None:
        yield f"It has an alarm: {service.status.alarm[:_MAX_TEXT_CHARS]}"
    if service.status.phase not in (ServicePhase.READY, ServicePhase.STANDBY) and answers_clients(service):
        yield f"Its query commits no batch, so views and history are not updated: {_why(service)}"
    if service.replica is not None and service.replica.differences:
        times = count(service.replica.differences, "time")
        yield f"The replica answered {times} differently from the query; the log has both answers"
    if service.batches.rows_dropped:
        yield f"Spark dropped {count(service.batches.rows_dropped, 'request')} as late, which must not happen"


def _findings_of_observer(polled: ServiceState | Unreadable | None) -> Iterator[str]:
    """Yield the findings about an observer. Without clients, only its metrics show if it works."""
    if isinstance(polled, Unreadable):
        yield f"The observer does not answer, so views and history may be out of date: {polled}"
    elif polled is not None and polled.status.phase not in (ServicePhase.READY, ServicePhase.STARTING):
        yield f"The observer commits no batch, so views and history are not updated: {_why(polled)}"


def _why(service: ServiceState) -> str:
    status = service.status
    return f"{status.phase}: {status.reason}"[:_MAX_TEXT_CHARS]


def _ms(value: int | None) -> str:
    return UNKNOWN if value is None else duration_text(value)


def _number(value: int | None, noun: str) -> str:
    return UNKNOWN if value is None else f"{thousands(value)} {noun}{'' if value == 1 else 's'}"


def _sections(service: ServiceState, *, is_observed: bool) -> Iterator[CoordinatorSection]:
    """Yield the page's sections. An observer has only `Batches`."""
    batches, took = service.batches, service.batches.durations
    of_time = [
        ("Not yet handled", f"{_number(service.backlog_records, 'record')} of the requests topic"),
        ("Event time", f"{_ms(batches.time_lag_ms)} behind the clock"),
        ("Clock attested", f"{_ms(service.ticker_age_ms)} ago"),
    ]
    yield CoordinatorSection(
        "Batches",
        [
            ("Phase", service.status.phase),
            ("Last batch", f"{thousands(service.status.batch_id)}, {_ms(batches.age_ms)} ago")
            if batches.age_ms is not None
            else ("Last batch", "none since the start"),
            ("Its duration", _ms(batches.last_ms)),
            ("All batches", "none yet" if took is None else f"{thousands(took.number)}: {took.text}"),
            *([] if is_observed else of_time),
            ("Spark restarts", thousands(service.spark_restarts)),
        ],
    )
    if is_observed:
        return
    yield CoordinatorSection("Replica", list(_replica_rows(service.replica or NO_REPLICA_STATE)))
    open_ = service.transactions or TransactionsSummary()
    oldest = "" if not open_.pending else f", the oldest for {duration_text(open_.oldest_age_ms)}"
    yield CoordinatorSection("Transactions", [("Pending", f"{thousands(open_.pending)}{oldest}")])


def _replica_rows(replica: ReplicaState) -> Iterator[tuple[str, str]]:
    yield "Phase", replica.phrase[:_MAX_TEXT_CHARS]
    if replica.phase == NO_REPLICA_STATE.phase:
        return
    yield "Behind", f"{duration_text(replica.lag_ms)}, {_number(replica.lag_records, 'record')}"
    yield "Ahead of the query", duration_text(round(replica.lead_s * 1000))
    compared = thousands(replica.compared)
    yield "Answers", f"{thousands(replica.answers)} early, {compared} compared with the query's"
    yield "Differences", thousands(replica.differences)
    yield "Started", _number(replica.seedings, "time")


def _latencies(service: ServiceState) -> Iterator[RequestLatency]:
    gateway = service.gateway
    if gateway is None:
        return
    for of, found in (("clients", gateway.latencies), ("coordinator", gateway.answers)):
        for name, durations in sorted(found.items(), key=lambda item: -item[1].number):
            yield RequestLatency(of, name, durations)
