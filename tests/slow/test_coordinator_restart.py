"""What a stop, a start and a ticker that stands still mean to groups, with everything real."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch
from embedded.broker import EmbeddedBroker
from state.errors import ErrorCode
from state.kafka.history import EntryType
from streaming.service.clock.ticker import Ticker
from streaming.service.coordinator import Coordinator
from streaming.service.query import coordinating
from streaming.service.status import Phase, read_status
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    history_of,
    pending_of,
    snapshots_of,
    stable_member,
    starts,
    wait_until,
)
from tests.harness.restartable import Service, restartable, state_of

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def service(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with restartable(broker, tmp_path_factory.mktemp("coordinator")) as service:
        yield service


@pytest.fixture(autouse=True)
def whole(service: Service) -> None:
    """Starts the coordinator again where a test has stopped its ticker."""
    ticker = service.coordinator._ticker
    if ticker is not None and not ticker._thread.is_alive():
        service.coordinator.stop()
        service.start()


def test_stop_and_start_keep_groups_and_answer_what_was_asked_meanwhile(service: Service) -> None:
    member = stable_member(service.one, "kept", session_timeout_ms=300_000)
    before = snapshots_of(service.client_config, service.layout, "kept")[-1]
    epochs = epochs_of(service)
    threads = [thread for thread in threading.enumerate() if thread.name in ("ticker", "supervisor")]
    assert len(threads) == 2
    service.coordinator.stop()
    assert read_status(service.options.folder / "status.json").phase is Phase.STOPPED
    assert not any(thread.is_alive() for thread in threads)

    asked = service.one.heartbeat("kept", generation_id=1, member_id=member.member_id)
    service.start(**{"group.max.size": "2"})
    assert asked.result().error_code is ErrorCode.NONE
    after = snapshots_of(service.client_config, service.layout, "kept")[-1]
    assert (after.incarnation, after.generation, after.members) == (
        before.incarnation,
        before.generation,
        before.members,
    )
    assert member.leave() is ErrorCode.NONE
    check_epochs(service, epochs)
    # The setting rules: a third member is one too many.
    full = [Member.of(service.one, "full") for _ in range(2)]
    joins = [one.join() for one in full]
    assert {join.result().error_code for join in joins} == {ErrorCode.NONE}
    refused = Member(service.one, "full", "").join().result()
    assert refused.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def epochs_of(service: Service) -> list[Epoch]:
    return Checkpoint.at(service.options.folder).record().epochs


def check_epochs(service: Service, before: list[Epoch]) -> None:
    """A new configuration has begun behind the others, and was announced."""
    (*old, new) = epochs_of(service)
    assert old == before
    assert new.from_batch > old[-1].from_batch
    assert new.after_ms == Checkpoint.at(service.options.folder).record().outages[-1].outage.after_ms
    assert new.settings == {**old[-1].settings, "group.max.size": 2}
    *_, last, this = starts(service.client_config, service.layout)
    assert [(s.from_batch, s.settings) for s in (last, this)] == [
        (old[-1].from_batch, old[-1].settings),
        (new.from_batch, new.settings),
    ]


def test_nobody_expires_while_no_coordinator_runs(service: Service) -> None:
    """It is silent for longer than its session, meanwhile, and expires when it is so once more."""
    session_ms = 10_000
    member = stable_member(service.one, "silent-meanwhile", session_timeout_ms=session_ms)
    service.coordinator.stop()
    stopped_s = time.monotonic()
    wait_until(
        lambda: time.monotonic() > stopped_s + session_ms / 1000, "the end of its session by the clock"
    )
    # No gateway is in this process, so the outage ends with the first request.
    service.coordinator = Coordinator(replace(service.options, first_request_wait_s=START_TIMEOUT_S))
    service.coordinator.start()
    status = service.coordinator.status
    waits = "sessions begin with the first request"
    assert status.wait_until(lambda now: now.reason.startswith(waits), START_TIMEOUT_S), status.current
    asked_ms = time.time() * 1000
    asked = service.one.heartbeat("silent-meanwhile", generation_id=1, member_id=member.member_id)
    assert asked.result().error_code is ErrorCode.NONE
    until_ms = Checkpoint.at(service.options.folder).record().outages[-1].outage.until_ms
    assert until_ms >= asked_ms
    wait_until(lambda: state_of(service, "silent-meanwhile") == "Empty", "its end")
    history = history_of(service.client_config, service.layout, "silent-meanwhile")
    times = {event.type: event.at_ms for event in history}
    assert times[EntryType.TAKEN_OVER] == until_ms
    assert times[EntryType.MEMBER_REMOVED] == until_ms + session_ms


def test_without_clock_records_nobody_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinating, "TICKER_ALARM_AGE_S", 1.0)
    ticker = service.coordinator._ticker
    assert ticker is not None
    ticker.stop()
    stood_at_ms = ticker.attested_ms
    status = service.coordinator.status
    assert status.wait_until(lambda now: now.alarm is not None, timeout_s=30)
    alarm = read_status(service.options.folder / "status.json").alarm
    assert "no clock record was acknowledged" in str(alarm)
    # Long after a member's time by any clock it is still there, while other groups are served.
    member = Member.of(service.one, "no-clock", session_timeout_ms=500)
    asked_s = ticker.age_s()
    wait_until(lambda: ticker.age_s() > asked_s + 2, "the member's time")
    Member.of(service.other, "served-meanwhile")
    servers, layout = service.client_config, service.layout
    assert pending_of(servers, layout, "no-clock", settled=True) == [member.member_id]

    again = Ticker(servers, layout.requests_topic, layout.request_partitions)
    again.start()
    try:
        wait_until(lambda: pending_of(servers, layout, "no-clock") == [], "the member's end")
    finally:
        again.stop()
    history = history_of(service.client_config, service.layout, "no-clock")
    (removed,) = (event for event in history if event.type is EntryType.PENDING_MEMBER_REMOVED)
    assert stood_at_ms < removed.at_ms < again.attested_ms
