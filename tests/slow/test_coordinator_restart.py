"""Groups while a real coordinator stops, starts, and gets no clock records; and the files of many batches."""

import threading
from collections.abc import Callable, Iterator

import pytest

from bench.memory import MIB, heap_after_collection_bytes
from bench.rows.checkpoint import growth_of_most, sizes_in
from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch
from embedded.broker import EmbeddedBroker
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase
from streaming.service.query import coordinating
from streaming.service.status import read_status
from tests.e2e.early import answers, markers
from tests.e2e.harness import (
    Member,
    note,
    read_topic,
    settle,
    snapshots_of,
    stable_member,
    starts,
    wait_until,
)
from tests.harness.member_requests import heartbeat
from tests.harness.restartable import Service, restartable

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quick_java")]

# Spark keeps less than usual, so that what is kept for ever shows soon. The rows `checkpoint` and `endurance`
# of the bench have its usual bounds and thousands of batches.
STREAMING = "spark.sql.streaming"
KEPT = {
    f"{STREAMING}.minBatchesToRetain": "5",
    f"{STREAMING}.stateStore.minDeltasForSnapshot": "10",
    f"{STREAMING}.stateStore.maintenanceInterval": "1s",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.sql.ui.retainedExecutions": "10",
}
WARM_BATCHES, BATCHES, STEP = 20, 48, 4
GROWTH_MAX = 0.3
COLLECTIONS = 4
HEAP_GROWTH_MAX_BYTES = 12 * MIB


@pytest.fixture(scope="module")
def service(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with restartable(broker, tmp_path_factory.mktemp("data") / "coordinator", KEPT) as service:
        yield service


@pytest.fixture(autouse=True)
def whole(service: Service) -> None:
    """Starts the coordinator again where a test has stopped its ticker."""
    ticker = service.coordinator._ticker
    if ticker is not None and not ticker._thread.is_alive():
        service.coordinator.stop()
        service.start()


def test_restart_keeps_groups_and_answers_later_requests(service: Service) -> None:
    member = stable_member(service.one, "kept", session_timeout_ms=300_000)
    settle(service.client_config, service.layout)
    before = snapshots_of(service.client_config, service.layout, "kept")[-1]
    marked = markers(read_topic(service.client_config, service.layout.responses_topic))
    epochs = epochs_of(service)
    threads = [thread for thread in threading.enumerate() if thread.name in ("ticker", "supervisor")]
    assert len(threads) == 2
    service.coordinator.stop()
    assert read_status(service.options.folder / "status.json").phase is ServicePhase.STOPPED
    assert not any(thread.is_alive() for thread in threads)

    asked = heartbeat(service.one, "kept", 1, member.member_id)
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
    check_early_answers(service, marked)
    # The setting rules: a third member is one too many.
    full = [Member.of(service.one, "full") for _ in range(2)]
    joins = [one.join() for one in full]
    assert {join.result().error_code for join in joins} == {ErrorCode.NONE}
    refused = Member(service.one, "full", "").join().result()
    assert refused.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def check_early_answers(service: Service, marked: dict[int, int]) -> None:
    """Check that the new replica has marked each partition once, and the query gives the answers that were
    early.
    """
    again = markers(read_topic(service.client_config, service.layout.responses_topic))
    assert again == {partition: count + 1 for partition, count in marked.items()}
    assert len(again) == service.layout.reply_partitions
    settle(service.client_config, service.layout)
    early, of_query = answers(service.client_config, service.layout)
    assert early
    assert all(set(of_query[request]) == set(values) for request, values in early.items())


def epochs_of(service: Service) -> list[Epoch]:
    return Checkpoint.at(service.options.folder).record().epochs


def check_epochs(service: Service, before: list[Epoch]) -> None:
    """Check that a new configuration has begun behind the others, and was announced."""
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


@pytest.mark.timeout(600)
def test_checkpoint_and_heap_are_bounded(
    service: Service, record_property: Callable[[str, object], None]
) -> None:
    batches: list[int] = []
    service.coordinator.on_batch = lambda batch: batches.append(batch.batch_id)
    member = stable_member(service.one, "endurance")
    wait_until(lambda: batches != [], "a batch")
    files, sizes = [], []
    commit_each_batch(member, batches, batches[0] + WARM_BATCHES)
    first = min(heap_of(service) for _ in range(COLLECTIONS))
    for number in range(WARM_BATCHES, BATCHES + 1, STEP):
        batch = batches[0] + number
        commit_each_batch(member, batches, batch)
        sample = sizes_in(service.options.folder, batch)
        files.append(float(sample.files.total()))
        sizes.append(float(sample.sizes.total()))
    # Most collections find a running batch, too, 10 to 20 MiB of it.
    wait_until(lambda: heap_of(service) - first < HEAP_GROWTH_MAX_BYTES, f"a heap near {first / MIB:.1f} MiB")
    assert member.leave() is ErrorCode.NONE
    note(record_property, "files in the checkpoint", f"{min(files):.0f} to {max(files):.0f}")
    assert growth_of_most(files) < GROWTH_MAX
    assert growth_of_most(sizes) < GROWTH_MAX
    note(record_property, "heap after a collection", f"{first / MIB:.1f} MiB")


def commit_each_batch(member: Member, batches: list[int], last: int) -> None:
    """Commit after each batch, until the last one has ended. A heartbeat would not begin a batch at once."""
    while (newest := batches[-1]) < last:
        offset = CommittedTopic("jobs", [CommittedPartition(0, newest)])
        header = member.client.header(member.group_id, api_version=9)
        commit = OffsetCommit(**header, generation_id=1, member_id=member.member_id, topics=[offset])
        assert member.client.send(commit).result().error_code is ErrorCode.NONE
        wait_until(lambda newest=newest: batches[-1] > newest, "one more batch")  # type: ignore[misc]


def heap_of(service: Service) -> int:
    heap = heap_after_collection_bytes(service.coordinator.jvm_pid)
    assert heap is not None, "this test needs a JDK: jcmd, jstat"
    return heap


def test_without_clock_records_no_member_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinating, "TICKER_ALARM_AGE_S", 1.0)
    ticker = service.coordinator._ticker
    assert ticker is not None
    ticker.stop()
    status = service.coordinator.status
    assert status.wait_until(lambda now: now.alarm is not None, timeout_s=30)
    alarm = read_status(service.options.folder / "status.json").alarm
    assert "no clock record was acknowledged" in str(alarm)
    # Long after a member's time by any clock it is still there, while other groups are served.
    member = Member.of(service.one, "no-clock", session_timeout_ms=500)
    asked_s = ticker.age_s()
    wait_until(lambda: ticker.age_s() > asked_s + 2, "the member's time")
    Member.of(service.other, "served-meanwhile")
    *_, view = snapshots_of(service.client_config, service.layout, "no-clock")
    assert view.pending_members == [member.member_id]
