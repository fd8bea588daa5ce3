"""The coordinator itself, for its page and `/api/coordinator`: whether it answers, and what needs attention.

The content of its topics can always be read. Everything else is in the state of its process, which may not
answer. Unknown values are shown as unknown, never as 0.

The query is Spark's: it handles requests in batches. The replica is a process that appends the same answers
earlier. Clock records show that a coordinator runs: it appends them to the requests topic. A dead letter is a
record about a request that was refused or whose handling failed.
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
READ_AGE_MAX_S = 5
"""If the topics were last read longer ago, their content counts as unknown."""
_CLOCK_MS = 30_000
"""A clock record that is older does not show that a coordinator runs: later polls for one have failed."""
_OBSERVED = "These groups are the cluster's own coordinator's"
_MAX_TEXT_CHARS = 500


class CoordinatorSection(Struct, frozen=True):
    """A section of the page. Rows have a label and a text."""

    title: str
    rows: list[tuple[str, str]]


class RequestLatency(Struct, frozen=True):
    """The durations of requests of one type."""

    of: str  # "clients", answered by the gateway, or "coordinator", which answers the gateway
    name: str  # of the request
    durations: Durations


class CoordinatorStart(Struct, frozen=True, kw_only=True):
    """A start of a coordinator within the last hour."""

    at_ms: int
    from_batch: int  # first batch with these settings
    code_version: str
    epoch: int  # of the coordinator's claim
    skipped: list[str]  # ids of the requests that it skips
    settings: dict[str, object]


class CoordinatorPage(Struct, frozen=True, kw_only=True):
    """The data of the page of a coordinator, or of an observer."""

    now_ms: int
    sentence: str  # a summary
    findings: list[str]  # need a person's attention
    service: ServiceState | None
    no_metrics: str  # why `service` is None
    sections: list[CoordinatorSection]
    latencies: list[RequestLatency]
    claim: Claim | None  # the record by which the coordinator owns the topics
    starts: list[CoordinatorStart]
    dead_letters: list[DeadLetterLine]  # the newest
    reasons: dict[str, int]  # counts of dead letters of the last hour
    letters: str  # the number of dead letters, as a text
    is_read: bool  # the topics have been read to their ends, the last time within READ_AGE_MAX_S
    pending: list[PendingTransactionLine]  # the oldest of `pending_number` transactions
    pending_number: int
    is_observed: bool = False


def coordinator_page(
    topics: ServiceFacts,
    starts: Iterable[CoordinatorStarted],
    polled: ServiceState | Unreadable | None,
    read_age_s: float,
    now_ms: int,
) -> CoordinatorPage:
    """Return the data of the page. `read_age_s` is the time since the topics were read.

    `polled` is the state of the process, the error if it does not answer, or None if its address is unknown.
    """
    is_read = read_age_s <= READ_AGE_MAX_S
    service = polled if isinstance(polled, ServiceState) else None
    findings = (
        _observer_findings(polled) if topics.is_observed else _finding_sentences(topics, service, is_read)
    )
    return CoordinatorPage(
        now_ms=now_ms,
        sentence=_sentence(topics, service, is_read, now_ms),
        findings=list(findings),
        service=service,
        no_metrics=_no_metrics_reason(polled),
        is_observed=topics.is_observed,
        sections=[] if service is None else list(_sections(service, is_observed=topics.is_observed)),
        latencies=[] if service is None else list(_request_latencies(service)),
        claim=topics.claim,
        starts=sorted(map(_start_of, starts), key=lambda one: -one.at_ms),
        dead_letters=topics.dead_letters[:MAX_SHOWN],
        reasons=dict(Counter(letter.reason for letter in topics.dead_letters).most_common()),
        letters=_dead_letters_text(topics, is_read),
        is_read=is_read and topics.is_complete,
        pending=topics.pending,
        pending_number=topics.pending_number,
    )


def _start_of(entry: CoordinatorStarted) -> CoordinatorStart:
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
        parts = [_service_text(service), _last_batch_text(service)]
    return f"{'; '.join([*parts, _dead_letters_text(topics, is_read)])}."


def _observer_text(service: ServiceState | None) -> str:
    if service is None:
        return f"whether the observer runs is {UNKNOWN}"
    if service.status.phase is not ServicePhase.READY:
        return f"the observer does not write: {_phase_text(service)}"
    return f"the observer runs, {_last_batch_text(service)}"


def _no_metrics_reason(polled: ServiceState | Unreadable | None) -> str:
    if polled is None:
        return "no address of its metrics is known"
    return f"its metrics do not answer: {polled}" if isinstance(polled, Unreadable) else ""


def _service_text(service: ServiceState) -> str:
    """Return whether the coordinator answers clients, and by what."""
    if service.status.phase is ServicePhase.STANDBY:
        return "This coordinator is a standby: another one owns the topics, and it waits until that one ends"
    if not answers_clients(service):
        return f"The coordinator does not answer: {_phase_text(service)}"
    return f"The coordinator answers: {_replica_text(service)}"


def answers_clients(service: ServiceState) -> bool:
    """Return True if clients get answers, from the query or from the replica."""
    phase = service.status.phase
    is_answering = service.replica is not None and service.replica.is_answering
    return phase is ServicePhase.READY or (is_answering and phase is not ServicePhase.STOPPED)


def _replica_text(service: ServiceState) -> str:
    """Return by what the clients of an answering coordinator get their answers."""
    replica = service.replica or NO_REPLICA_STATE
    if replica.phase == NO_REPLICA_STATE.phase:
        return "without a replica"
    if not replica.is_answering:
        return f"by batches, replica {replica.phrase[:_MAX_TEXT_CHARS]}"
    return f"replica answering, {duration_text(replica.lag_ms)} behind"


def _last_batch_text(service: ServiceState) -> str:
    if service.batches.age_ms is None:
        return "no batch since its start"
    return f"last batch {duration_text(service.batches.age_ms)} ago"


def _topics_text(topics: ServiceFacts, is_read: bool, now_ms: int) -> str:
    """Return whether a coordinator runs, judged only by its topics."""
    if not is_read or topics.is_silent is None:
        why = "the topics are being read" if is_read else "no broker answers"
        return f"Whether a coordinator runs is not known: {why}"
    if topics.is_silent:
        is_released = topics.claim is not None and topics.claim.is_released
        last_end = ", and the last one ended in order" if is_released else ""
        return f"No coordinator runs: no clock record arrives{last_end}"
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
    at_least = "at least " if topics.has_more else ""
    return f"{at_least}{thousands(number)} dead letter{'' if number == 1 else 's'} in the last hour"


def _finding_sentences(topics: ServiceFacts, service: ServiceState | None, is_read: bool) -> Iterator[str]:
    """Yield what needs attention at a coordinator: by its process or, if that is unknown, by its topics."""
    if service is None:
        if is_read and topics.is_silent:
            yield "No group is coordinated: start the coordinator, or read its log"
        return
    if service.status.alarm is not None:
        yield f"It has an alarm: {service.status.alarm[:_MAX_TEXT_CHARS]}"
    if service.status.phase not in (ServicePhase.READY, ServicePhase.STANDBY) and answers_clients(service):
        yield f"Its query commits no batch, so views and history are not updated: {_phase_text(service)}"
    if service.replica is not None and service.replica.differences:
        times = count(service.replica.differences, "time")
        yield f"The replica answered {times} differently from the query; the log has both answers"
    if service.batches.rows_dropped:
        yield f"Spark dropped {count(service.batches.rows_dropped, 'request')} as late, which must not happen"


def _observer_findings(polled: ServiceState | Unreadable | None) -> Iterator[str]:
    """Yield the findings about an observer. Without clients, only its metrics show if it works."""
    if isinstance(polled, Unreadable):
        yield f"The observer does not answer, so views and history may be out of date: {polled}"
    elif polled is not None and polled.status.phase not in (ServicePhase.READY, ServicePhase.STARTING):
        yield f"The observer commits no batch, so views and history are not updated: {_phase_text(polled)}"


def _phase_text(service: ServiceState) -> str:
    status = service.status
    return f"{status.phase}: {status.reason}"[:_MAX_TEXT_CHARS]


def _duration_or_unknown(value: int | None) -> str:
    return UNKNOWN if value is None else duration_text(value)


def _count_or_unknown(value: int | None, noun: str) -> str:
    return UNKNOWN if value is None else f"{thousands(value)} {noun}{'' if value == 1 else 's'}"


def _sections(service: ServiceState, *, is_observed: bool) -> Iterator[CoordinatorSection]:
    """Yield the page's sections. An observer has only `Batches`."""
    batches, durations = service.batches, service.batches.durations
    time_rows = [
        ("Not yet handled", f"{_count_or_unknown(service.backlog_records, 'record')} of the requests topic"),
        ("Event time", f"{_duration_or_unknown(batches.time_lag_ms)} behind the clock"),
        ("Clock attested", f"{_duration_or_unknown(service.ticker_age_ms)} ago"),
    ]
    last_batch = f"{thousands(service.status.batch_id)}, {_duration_or_unknown(batches.age_ms)} ago"
    all_batches = "none yet" if durations is None else f"{thousands(durations.number)}: {durations.text}"
    yield CoordinatorSection(
        "Batches",
        [
            ("Phase", service.status.phase),
            ("Last batch", "none since the start" if batches.age_ms is None else last_batch),
            ("Its duration", _duration_or_unknown(batches.last_ms)),
            ("All batches", all_batches),
            *([] if is_observed else time_rows),
            ("Spark restarts", thousands(service.spark_restarts)),
        ],
    )
    if is_observed:
        return
    yield CoordinatorSection("Replica", list(_replica_rows(service.replica or NO_REPLICA_STATE)))
    transactions = service.transactions or TransactionsSummary()
    oldest = f", the oldest for {duration_text(transactions.oldest_age_ms)}" if transactions.pending else ""
    yield CoordinatorSection("Transactions", [("Pending", f"{thousands(transactions.pending)}{oldest}")])


def _replica_rows(replica: ReplicaState) -> Iterator[tuple[str, str]]:
    yield "Phase", replica.phrase[:_MAX_TEXT_CHARS]
    if replica.phase == NO_REPLICA_STATE.phase:
        return
    yield "Behind", f"{duration_text(replica.lag_ms)}, {_count_or_unknown(replica.lag_records, 'record')}"
    yield "Ahead of the query", duration_text(round(replica.lead_s * 1000))
    compared = thousands(replica.compared)
    yield "Answers", f"{thousands(replica.answers)} early, {compared} compared with the query's"
    yield "Differences", thousands(replica.differences)
    yield "Started", _count_or_unknown(replica.seedings, "time")


def _request_latencies(service: ServiceState) -> Iterator[RequestLatency]:
    gateway = service.gateway
    if gateway is None:
        return
    for of, durations_by_name in (("clients", gateway.latencies), ("coordinator", gateway.answers)):
        # The most frequent requests are first.
        for name, durations in sorted(durations_by_name.items(), key=lambda item: -item[1].number):
            yield RequestLatency(of, name, durations)
