"""The page of the coordinator: what it says where something is known, and where it is not."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from cli.run_gateway import gateway_state
from gateway.metrics.numbers import BUCKETS_S, Numbers
from kafka_why import service_state
from kafka_why.contract.codec import UNREADABLE, DeadLetter, PendingTransaction, Reason, encode, offset_key
from kafka_why.contract.history_reader import CoordinatorStarted
from kafka_why.contract.service import NO_REPLICA_STATE, ServicePhase, ServiceStatus
from kafka_why.metrics.http import HttpPort
from kafka_why.page.coordinator import MAX_SHOWN, UNKNOWN, CoordinatorPage, coordinator_page
from kafka_why.page.fleet import MAX_STARTS, WINDOW_MS, Fleet
from kafka_why.page.topics_followers import (
    MAX_DEAD_LETTERS,
    MAX_MESSAGE_CHARS,
    MAX_PENDING,
    ServiceFacts,
    ServiceTopics,
)
from kafka_why.service_state import MAX_BYTES, Durations, ServiceState, StateReader, Unreadable, decoded
from tests.harness import scraped
from tests.harness.scraped import Scraped
from tests.unit.kafka_why.page_facts import (
    LAYOUT,
    facts_of,
    fleet_of,
    played,
    take_commit,
    take_entries,
    take_view,
    view,
)
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

NOW_MS = 1_795_230_000_000


@pytest.fixture(scope="module")
def busy() -> Scraped:
    return scraped.busy()


def facts(**fields: object) -> ServiceFacts:
    given: dict[str, object] = {
        "is_complete": True,
        "claim": None,
        "clock_ms": NOW_MS - 200,
        "is_silent": False,
        "dead_letters": [],
        "has_more": False,
        "pending": [],
        "pending_number": 0,
    }
    return ServiceFacts(**given | fields)  # type: ignore[arg-type]


def page(
    topics: ServiceFacts | None = None, service: ServiceState | None = None, read_age_s: float = 0.0
) -> CoordinatorPage:
    return coordinator_page(topics or facts(), (), service, read_age_s, NOW_MS)


def letter(at_ms: int, topics: ServiceTopics, **fields: object) -> None:
    given: dict[str, object] = {
        "version": 1,
        "reason": Reason.KEY_MISMATCH,
        "message": "why",
        "request": "requests-0-7",
        "at_ms": at_ms,
        "answered": True,
    }
    topics.apply_dead_letter(at_ms, encode(DeadLetter(**given | fields)))  # type: ignore[arg-type]


def test_coordinator_summary_states_availability_progress_and_refused_requests(busy: Scraped) -> None:
    topics = ServiceTopics()
    topics.mark_complete()
    for _ in range(3):
        letter(NOW_MS - 1, topics)
    found = page(topics.facts(NOW_MS), busy.state())
    assert found.sentence == (
        "The coordinator answers: replica answering, 250 ms behind; last batch 0 ms ago; "
        "3 dead letters in the last hour."
    )
    assert found.reasons == {"KEY_MISMATCH": 3}


def test_coordinator_without_a_batch_is_shown_without_zero_figures() -> None:
    found = page(service=Scraped(complete=False).state())
    assert "no batch since its start" in found.sentence
    (batches, _, _) = found.sections
    rows = dict(batches.rows)
    shown = [rows[name] for name in ("Last batch", "Its duration", "All batches")]
    assert shown == ["none since the start", UNKNOWN, "none yet"]
    assert {rows[name].startswith(UNKNOWN) for name in ("Not yet handled", "Event time")} == {True}


@pytest.mark.parametrize(
    ("phase", "replica", "head"),
    [
        (ServicePhase.READY, "off", "The coordinator answers: without a replica"),
        (ServicePhase.READY, "seeding", "The coordinator answers: by batches, replica seeding: why"),
        (ServicePhase.RESTARTING, "answering", "The coordinator answers: replica answering, 250 ms behind"),
        (
            ServicePhase.RESTARTING,
            "seeding",
            "The coordinator does not answer: restarting: the JVM has ended",
        ),
        (ServicePhase.STOPPED, "answering", "The coordinator does not answer: stopped: the JVM has ended"),
        (ServicePhase.STANDBY, "standby", "This coordinator is a standby"),
    ],
)
def test_summary_tells_if_the_query_or_replica_answers(phase: ServicePhase, replica: str, head: str) -> None:
    of = Scraped()
    of.status = ServiceStatus(phase, "the JVM has ended", 0)
    reason = "why" if replica == "seeding" else ""
    of.replica = NO_REPLICA_STATE if replica == "off" else replace(of.replica, phase=replica, reason=reason)
    assert page(service=of.state()).sentence.startswith(head)


def test_coordinator_page_lists_each_problem_as_a_finding() -> None:
    of = Scraped()
    of.status = ServiceStatus(ServicePhase.RESTARTING, "x", 0, alarm="the disk is full")
    assert page(service=of.state()).findings == [
        "It has an alarm: the disk is full",
        "Its query commits no batch, so views and history are not updated: restarting: x",
        "The replica answered 1 time differently from the query; the log has both answers",
    ]
    of.status, of.replica = ServiceStatus(ServicePhase.READY, "", 0), replace(of.replica, differences=0)
    assert page(service=of.state()).findings == []


@pytest.mark.parametrize(
    ("fields", "read_age_s", "head"),
    [
        ({}, 0.0, "A coordinator runs: it attested the time 200 ms ago; no dead letters in the last hour."),
        ({"is_silent": True}, 0.0, "No coordinator runs: no clock record arrives; no dead letters"),
        ({"is_silent": None}, 0.0, "Whether a coordinator runs is not known: the topics are being read; "),
        (
            {"is_silent": True},
            6.0,
            "Whether a coordinator runs is not known: no broker answers; dead letters are not known now.",
        ),
        (
            {"clock_ms": NOW_MS - 60_000},
            0.0,
            "Whether a coordinator runs is not known: it was last seen 60.0 s ago; no dead letters",
        ),
        (
            {"is_complete": False},
            0.0,
            "A coordinator runs: it attested the time 200 ms ago; dead letters are",
        ),
    ],
)
def test_without_metrics_topics_show_whether_a_coordinator_runs(
    fields: dict[str, object], read_age_s: float, head: str
) -> None:
    found = page(facts(**fields), read_age_s=read_age_s)
    assert found.sentence.startswith(head)
    assert found.sections == []


def test_dead_letters_of_the_last_hour_are_listed_newest_first() -> None:
    topics = ServiceTopics()
    topics.mark_complete()
    for age_ms in (WINDOW_MS + 1, 2_000, 1_000):
        letter(NOW_MS - age_ms, topics, request=f"r-{age_ms}")
    assert [one.request for one in topics.facts(NOW_MS).dead_letters] == ["r-1000", "r-2000"]
    assert topics.facts(NOW_MS + WINDOW_MS).dead_letters == []


def test_dead_letters_are_bounded_in_number_and_size_as_the_page_states() -> None:
    topics = ServiceTopics()
    topics.mark_complete()
    for _ in range(MAX_DEAD_LETTERS + 1):
        letter(NOW_MS, topics, message="m" * 20_000, key=b"k" * 70_000)
    found = page(topics.facts(NOW_MS))
    assert "at least 1\N{NARROW NO-BREAK SPACE}000 dead letters in the last hour" in found.sentence
    assert len(found.dead_letters) == MAX_SHOWN
    assert {len(one.message) for one in found.dead_letters} == {MAX_MESSAGE_CHARS}
    assert not topics.facts(NOW_MS + WINDOW_MS + 1).has_more


def test_unreadable_dead_letter_is_refused_and_changes_nothing() -> None:
    topics = ServiceTopics()
    for value in (None, b"", b"{}", b"[" * 100_000):
        with pytest.raises(UNREADABLE):
            topics.apply_dead_letter(NOW_MS, value)
    assert topics.facts(NOW_MS).dead_letters == []


def test_oldest_pending_transactions_are_shown_until_their_tombstones() -> None:
    topics = ServiceTopics()
    for number in range(MAX_PENDING + 5):
        topics.apply_pending(f"{number}".encode(), encode(pending(NOW_MS - number)))
    found = topics.facts(NOW_MS)
    assert (found.pending_number, len(found.pending)) == (MAX_PENDING + 5, MAX_PENDING)
    assert found.pending[0].at_ms == NOW_MS - MAX_PENDING - 4
    topics.apply_pending(f"{MAX_PENDING + 4}".encode(), None)
    assert topics.facts(NOW_MS).pending[0].at_ms == NOW_MS - MAX_PENDING - 3


def pending(at_ms: int) -> PendingTransaction:
    return PendingTransaction(
        group_id="g",
        incarnation="i",
        transactional_id="t",
        producer_id=1,
        producer_epoch=0,
        txn_version=2,
        txn_partition=0,
        txn_position=0,
        txn_topic_id=None,
        request="r",
        at_ms=at_ms,
        partitions=1,
    )


def test_coordinator_starts_of_the_last_hour_are_listed_newest_first() -> None:
    fleet = Fleet(LAYOUT)

    def start(number: int) -> None:
        said = CoordinatorStarted(at_ms=NOW_MS + number, from_batch=number, settings={"a": 1})
        fields = {name: getattr(said, name) for name in said.__struct_fields__}
        fleet.apply(LAYOUT.events_topic, None, encode({"type": "CoordinatorStarted", **fields}), NOW_MS)

    for number in (1, 2, 2, 3):
        start(number)
    found = coordinator_page(facts(), fleet.recent_starts(NOW_MS), None, 0.0, NOW_MS)
    assert [one.from_batch for one in found.starts] == [3, 2, 1]
    assert [one.from_batch for one in fleet.recent_starts(NOW_MS + WINDOW_MS + 3)] == [3]
    for number in range(MAX_STARTS + 5):
        start(number)
    assert len(fleet.recent_starts(NOW_MS)) == MAX_STARTS


def test_latencies_are_those_of_the_gateway_in_the_same_process(busy: Scraped) -> None:
    buckets = [0.0] * len(BUCKETS_S)
    counted = [*buckets[:3], 98.0, *buckets[4:], 2.0, 12.5]
    numbers: Numbers = {"request_duration_seconds": {("Heartbeat",): counted}, "connections": {(): [4.0]}}
    found = gateway_state(numbers)
    assert found.connections == 4
    bound_ms = round(BUCKETS_S[3] * 1000)
    assert found.latencies == {"Heartbeat": Durations(100, 125, bound_ms, None)}
    (shown,) = page(service=replace(busy.state(), gateway=found)).latencies
    assert (shown.name, shown.of) == ("Heartbeat", "clients")


@pytest.mark.parametrize("document", [b"", b"<html>", b"\xff", b"{}", b"[" * 100_000, b" " * (MAX_BYTES + 1)])
def test_invalid_coordinator_state_document_is_refused(document: bytes) -> None:
    with pytest.raises(Unreadable):
        decoded(document)


def test_coordinator_state_is_read_every_two_seconds(busy: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    document = msgspec.json.encode(busy.state())
    with HttpPort("127.0.0.1", 0, busy.registry, state=lambda: document) as port:
        reader = StateReader(port.url)
        found = reader.poll()
        assert found == busy.state()
        monkeypatch.setattr(service_state, "FRESH_S", 0.0)
        forgetful = StateReader(port.url)
        assert forgetful.poll() == found
    assert reader.poll() is found
    refused = forgetful.poll()
    assert isinstance(refused, Unreadable) and "refused" in str(refused)


def observed(asked: ServiceState | Unreadable | None) -> CoordinatorPage:
    return coordinator_page(facts(is_observed=True, is_silent=None), (), asked, 0.0, NOW_MS)


def test_observers_page_mentions_no_clock_replica_or_owner(busy: Scraped) -> None:
    running = observed(busy.state())
    assert running.sentence.startswith(
        "These groups are the cluster's own coordinator's; the observer runs, last batch"
    )
    ((title, rows),) = [(section.title, dict(section.rows)) for section in running.sections]
    assert title == "Batches"
    assert not rows.keys() & {"Not yet handled", "Event time", "Clock attested"}
    unknown = observed(None)
    assert "whether the observer runs is not known" in unknown.sentence
    assert unknown.no_metrics == "no address of its metrics is known"


@pytest.mark.parametrize(
    ("phase", "findings"),
    [
        (None, ["The observer does not answer, so views and history may be out of date: Connection refused"]),
        (
            ServicePhase.RESTARTING,
            ["The observer commits no batch, so views and history are not updated: restarting: x"],
        ),
        (ServicePhase.STARTING, []),
        (ServicePhase.READY, []),
    ],
)
def test_unresponsive_or_stalled_observer_is_a_finding(
    busy: Scraped, phase: ServicePhase | None, findings: list[str]
) -> None:
    gone = Unreadable("Connection refused")
    asked = gone if phase is None else replace(busy.state(), status=ServiceStatus(phase, "x", 0))
    assert observed(asked).findings == findings


P = ("orders", 0)


def entries_of(fleet: Fleet) -> int:
    return len(facts_of(fleet).entries)


def test_page_forgets_an_ended_group_once_its_offsets_are_deleted() -> None:
    fleet = fleet_of(view())
    take_commit(fleet, "g", P, 5)
    assert facts_of(fleet).view == view()
    fleet.apply(LAYOUT.groups_topic, b"g", None, 0)
    fleet.trim(0)
    assert facts_of(fleet).view is None
    fleet.apply(LAYOUT.offsets_topic, offset_key("g", *P), None, 0)
    fleet.trim(0)
    assert (fleet.group_ids(), fleet.facts("g"), fleet.group_version("g")) == ([], None, None)


def test_fleet_keeps_history_entries_for_an_hour() -> None:
    fleet, story = Fleet(LAYOUT), played(*STORY)
    take_entries(fleet, story, END_MS)
    assert fleet.last_entry_ms == story[-1].at_ms
    fleet.trim(BEGIN_MS + WINDOW_MS)
    assert entries_of(fleet) == len(story)
    fleet.trim(BEGIN_MS + WINDOW_MS + 1)
    assert entries_of(fleet) == sum(entry.at_ms > BEGIN_MS for entry in story)
    fleet.trim(END_MS + WINDOW_MS + 1)
    assert fleet.group_ids() == []
    take_entries(fleet, story, END_MS + WINDOW_MS + 1)
    assert fleet.group_ids() == [], "they are too old"


def test_group_version_and_fleet_version_grow_with_each_change() -> None:
    fleet = Fleet(LAYOUT)
    changes: list[tuple[Callable[[], None], bool]] = [
        (lambda: take_view(fleet, view()), False),
        (lambda: take_commit(fleet, "g", P, 5), False),
        (lambda: take_entries(fleet, played(*STORY), END_MS), True),
        (lambda: fleet.trim(END_MS + WINDOW_MS + 1), True),
    ]
    seen = [(fleet.version, 0, 0)]
    for change, has_entries in changes:
        change()
        facts = facts_of(fleet)
        seen.append((fleet.version, facts.version, facts.entries_version))
        grown = [now > before for before, now in zip(*seen[-2:], strict=True)]
        assert grown == [True, True, has_entries]


def test_unreadable_record_is_refused_and_leaves_the_fleet_unchanged() -> None:
    fleet = Fleet(LAYOUT)
    for topic in (LAYOUT.groups_topic, LAYOUT.offsets_topic, LAYOUT.events_topic):
        with pytest.raises(msgspec.DecodeError):
            fleet.apply(topic, b"{", b"{", 0)
    assert fleet.version == 0
