"""The metrics of a coordinator, with data from the test instead of topics and a query."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from kafka_why.contract.codec import CommittedOffset, DeadLetter, Reason, encode, offset_key
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    OffsetCommitResponse,
    PartitionError,
    TopicErrors,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.contract.rocketmq.requests import MessageModel, RegisterProducer
from kafka_why.contract.service import (
    ReplicaState,
    ServicePhase,
    ServiceStatus,
    ShareStateSummary,
    TransactionsSummary,
)
from kafka_why.lag.definitions import LogBounds, Partition
from kafka_why.metrics.batch_progress import BatchProgress, SourceProgress, StateOperatorProgress
from kafka_why.metrics.collector import MetricsStateCollector
from kafka_why.metrics.metrics_state import MetricsState
from kafka_why.metrics.process import ProcessCollector, ServiceReadings, process_metrics
from kafka_why.metrics.series import SeriesBounds
from kafka_why.metrics.service import BatchMetrics, RebalanceMetrics, service_state
from kafka_why.service_state import ServiceState
from state.rocketmq.protocol import snapshot as rocketmq_view
from tests.harness.histories import Recorder
from tests.harness.rocketmq_broker import Broker, of

LAYOUT = TopicLayout.named("test", request_partitions=2)
NOW_S = 1_700_000_010.0
NOTHING: Mapping[str, Sequence[Partition]] = MappingProxyType({})


class Scraped:
    """All metrics of a coordinator, with data from the test."""

    def __init__(
        self, *, complete: bool = True, with_members: bool = False, bounds: SeriesBounds | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.metrics_state = MetricsState(LAYOUT, bounds)
        self.batches = BatchMetrics(self.registry, wall_s=lambda: NOW_S)
        self.rebalances = RebalanceMetrics(self.registry)
        self.status = ServiceStatus(ServicePhase.READY, "batches are being committed", 0, batch_id=41)
        self.registry.register(MetricsStateCollector(self.metrics_state, with_members=with_members))
        self.transactions = TransactionsSummary(2, 61_500, 3, (("abort", 4), ("commit", 40)))
        self.share_state = ShareStateSummary(
            tasks=1,
            oldest_age_ms=1_500,
            initialized=12,
            adopted=3,
            deleted=4,
            failures=(("15", 2), ("lost", 1)),
            reported_tasks=5,
            reported_ms=2_500,
        )
        self.replica = ReplicaState(
            phase="answering",
            lag_records=12,
            lag_ms=250,
            lead_s=0.75,
            lead_bytes=4_096,
            answers=900,
            compared=880,
            differences=1,
            seedings=2,
            groups=40,
        )
        self.readings = ServiceReadings(
            status=lambda: self.status,
            ticker_age_s=lambda: 0.25,
            spark_restarts=lambda: 2,
            transactions=lambda: self.transactions,
            share_state=lambda: self.share_state,
            replica=lambda: self.replica,
        )
        self.registry.register(
            ProcessCollector(
                lambda: process_metrics(self.readings, 0.5, self.metrics_state.backlog_records())
            )
        )
        if complete:
            self.metrics_state.mark_complete()

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def state(self) -> ServiceState:
        return service_state(self.readings, self.batches.state(), self.metrics_state.backlog_records())

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def group(
        self,
        group_id: str,
        state: str,
        *members: str,
        quarantined: str | None = None,
        held: Mapping[str, Sequence[Partition]] = NOTHING,
        since_ms: int = 0,
    ) -> None:
        """Feed the view of a group. `held` are the partitions of members."""
        view = snapshot(group_id, state, members, quarantined, held, since_ms)
        self.metrics_state.apply(LAYOUT.groups_topic, group_id.encode(), view)

    def offset(self, group_id: str, topic: str, partition: int, offset: int | None, at_ms: int = 0) -> None:
        value = None if offset is None else committed(group_id, topic, partition, offset, at_ms)
        self.metrics_state.apply(LAYOUT.offsets_topic, offset_key(group_id, topic, partition), value)

    def set_log_ends(self, at_ms: int, ends: Mapping[Partition, int]) -> None:
        """Feed the ends of logs that begin at offset 0."""
        bounds = {partition: LogBounds(0, end) for partition, end in ends.items()}
        self.metrics_state.lags.add_bounds(bounds, at_ms)

    def entry(self, seq: int, event_type: EntryType, at_ms: int = 0, **fields: Any) -> None:
        event = HistoryEntry(
            version=1,
            type=event_type,
            group_id="orders",
            incarnation="test-requests-0-1",
            seq=seq,
            at_ms=at_ms,
            from_state="Stable",
            to_state="Stable",
            generation=4,
            reason="why",
            rule="E4",
            cause="test-requests-0-9",
            **fields,
        )
        new_entry = self.metrics_state.apply(LAYOUT.events_topic, b"orders", encode(event))
        if new_entry is not None:
            self.rebalances.observe(new_entry)

    def rocketmq(self, group_id: str, broker: Broker) -> None:
        """Feed the history and view of the broker's group under this name."""
        view = (
            None if broker.group is None else encode(replace(rocketmq_view(broker.group), group_id=group_id))
        )
        self.metrics_state.apply(LAYOUT.groups_topic, group_id.encode(), view)
        for event in broker.history:
            renamed = encode(replace(event, group_id=group_id))
            self.metrics_state.apply(LAYOUT.events_topic, group_id.encode(), renamed)

    def consumer_group(self, group_id: str, *commands: str) -> None:
        """Feed the history and view of group `g` of the core after these commands, under this name."""
        recorder = Recorder()
        for event in recorder.play(*commands):
            renamed = replace(event, group_id=group_id)
            self.metrics_state.apply(LAYOUT.events_topic, group_id.encode(), encode(renamed))
        view = encode(replace(recorder.view(), group_id=group_id))
        self.metrics_state.apply(LAYOUT.groups_topic, group_id.encode(), view)

    def answer(self, response: msgspec.Struct) -> None:
        self.metrics_state.apply(LAYOUT.responses_topic, None, encode(response))


def snapshot(
    group_id: str,
    state: str,
    members: Sequence[str],
    quarantined: str | None,
    held: Mapping[str, Sequence[Partition]] = NOTHING,
    since_ms: int = 0,
) -> bytes:
    view = GroupSnapshot(
        group_id=group_id,
        incarnation="test-requests-0-1",
        seq=1,
        at_ms=0,
        state=state,
        state_timestamp_ms=since_ms,
        generation=4,
        protocol_type="consumer",
        protocol_name="range",
        leader_id=members[0] if members else None,
        members=[
            MemberSnapshot(m, None, "c", "h", 10_000, 60_000, b"", assigned(held.get(m, ())), False)
            for m in members
        ],
        pending_members=[],
        last_rebalance_at_ms=None,
        last_rebalance_reason="",
        quarantined=quarantined,
        subscribed_topics=sorted({topic for partitions in held.values() for topic, _ in partitions}) or None,
    )
    return encode(view)


def assigned(partitions: Sequence[Partition]) -> bytes:
    return encode_assignment(Assignment(tuple(TopicPartition(*partition) for partition in partitions)))


def committed(group_id: str, topic: str, partition: int, offset: int, at_ms: int) -> bytes:
    record = CommittedOffset(
        group_id=group_id,
        incarnation="test-requests-0-1",
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=-1,
        metadata="",
        committed_at_ms=at_ms,
        expire_at_ms=None,
        request="test-requests-0-9",
    )
    return encode(record)


def header(error: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    return {"group_id": "orders", "correlation_id": "c", "request": "test-requests-0-9", "error_code": error}


def batch(
    batch_id: int, total_ms: int, watermark: str, ends: dict[str, int], dropped: int = 0
) -> BatchProgress:
    return BatchProgress(
        batch_id=batch_id,
        num_input_rows=10,
        duration_ms={"addBatch": total_ms - 20, "triggerExecution": total_ms},
        event_time={"watermark": watermark},
        state_operators=[StateOperatorProgress(dropped)],
        sources=[SourceProgress({LAYOUT.requests_topic: ends})],
    )


def feed_rocketmq(scraped: Scraped) -> None:
    """Feed a group with a harmful duplicate client id, a broadcasting group with a harmless one,
    and a silent group.
    """
    clustering, broadcasting = Broker(), Broker()
    for connection in ("ch1", "ch2"):
        clustering.heartbeat("shop", connection)
        broadcasting.heartbeat("screen", connection, model=MessageModel.BROADCASTING)
    clustering.send(RegisterProducer(**of("shop", "ch1")))
    clustering.heartbeat("till", "ch3")
    clustering.now_ms = 60_000
    for client_id, connection in (("shop", "ch1"), ("shop", "ch2")):
        clustering.heartbeat(client_id, connection)
    clustering.send(RegisterProducer(**of("shop", "ch1")))
    clustering.scan()
    scraped.rocketmq("sales", clustering)
    scraped.rocketmq("screens", broadcasting)
    for effects in (clustering.heartbeat("shop", "ch1"), clustering.heartbeat("till", "ch3")):
        for reply in effects.replies:
            scraped.answer(reply.response)
        for push in effects.pushes:
            scraped.answer(push.message)


def busy() -> Scraped:
    """Return a coordinator with data for every metric."""
    scraped = Scraped(with_members=True)
    scraped.group("orders", "Stable", "m-1", "m-2", "m-3", held={"m-1": [("purchases", 0)]})
    scraped.group('odd "name"\\\n', "Empty")
    scraped.group("stuck", "PreparingRebalance", "m-9", quarantined="deadline raised")
    for partition, offset in ((0, 90), (1, 40)):
        scraped.offset("orders", "purchases", partition, offset)
    scraped.offset("orders", "gone", 0, 5)
    scraped.entry(1, EntryType.GROUP_CREATED)
    scraped.entry(2, EntryType.PREPARING_REBALANCE, 1_000)
    scraped.entry(3, EntryType.COMPLETING_REBALANCE, 3_000)
    scraped.entry(4, EntryType.STABLE, 5_000)
    scraped.entry(4, EntryType.STABLE, 5_000)
    scraped.entry(5, EntryType.OFFSETS_EXPIRED, partitions={"purchases": [2, 3], "gone": [1]})
    scraped.entry(6, EntryType.OFFSETS_DELETED, partitions={"purchases": [4]})
    outcomes = [PartitionError(0, ErrorCode.NONE), PartitionError(1, ErrorCode.OFFSET_METADATA_TOO_LARGE)]
    scraped.answer(OffsetCommitResponse(**header(), topics=[TopicErrors("purchases", outcomes)]))
    scraped.answer(JoinGroupResponse(**header(ErrorCode.MEMBER_ID_REQUIRED)))
    scraped.answer(HeartbeatResponse(**header()))
    scraped.answer(HeartbeatResponse(**header()))
    scraped.consumer_group(
        "parcels", "topics t=4", "A e0", "at 4s", "B e0", "at 5s", "A e2", "A e2 owned[0,1]"
    )
    scraped.consumer_group(
        "queue", "topics t=2", "at 1s", "share A e0", "init watcher partitions[t 0]", "init watcher error=15"
    )
    scraped.consumer_group("clicks", 'topology "0: t"', "topics t=2", "at 1s", "stream A e0 process=p1")
    feed_rocketmq(scraped)
    letter = DeadLetter(
        version=1, reason=Reason.INVALID_REQUEST, message="no JSON", request="r", at_ms=0, answered=False
    )
    scraped.metrics_state.apply(LAYOUT.dead_letters_topic, b"", encode(letter))
    for progress in (
        batch(40, 120, "2023-11-14T22:13:28.500Z", {"0": 100, "1": 50}),
        batch(41, 340, "2023-11-14T22:13:29.500Z", {"0": 110, "1": 60}),
    ):
        scraped.metrics_state.observe_batch(progress)
        scraped.batches.observe(progress)
    for at_ms, end in ((1_000, 80), (6_000, 95), (11_000, 100)):
        scraped.set_log_ends(
            at_ms,
            {
                (LAYOUT.requests_topic, 0): 117,
                (LAYOUT.requests_topic, 1): 60,
                ("purchases", 0): end,
                ("purchases", 1): 30,
            },
        )
    return scraped
