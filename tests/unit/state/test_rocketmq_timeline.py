"""RocketMQ's groups on the timeline: the log alone decides, and a fault affects only its own group."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, TopicMetadata
from kafka_why.contract.messages import ErrorCode, ErrorResponse, ReleaseGroup, ReleaseGroupResponse
from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import (
    CloseConnection,
    ConnectionClosed,
    ConsumerListResponse,
    GetConsumerListByGroup,
    LockBatchMq,
    LockBatchMqResponse,
    MessageModel,
    MessageQueue,
    NotifyConsumerIdsChanged,
    RegisterConsumer,
    ResponseCode,
)
from state import timeline
from state.config import BrokerConfig, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent
from state.protocol import Outage, Received
from state.rocketmq.context import Effects
from state.rocketmq.group import ScanDue
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.common import apply_rows
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS
from tests.harness.rocketmq_broker import notified
from tests.harness.rocketmq_log import realise

CONFIG = CoordinatorConfig(
    group_initial_rebalance_delay_ms=0, rocketmq=BrokerConfig(channel_expired_timeout_ms=45_000)
)
T0 = 1_000_000

seeds = st.integers(0, 2**32 - 1)
logs = st.builds(realise, seeds, st.integers(5, 120))
Log = list[Row]


@given(logs, seeds, st.sampled_from((0, 0, 9, 30)))
@examples(150)
def test_batching_does_not_change_the_outcome(rows: Log, seed: int, one_in: int) -> None:
    take_step = batches.failing_step(batches.one_fails_in(seed, one_in)) if one_in else batches.checked_step
    cut = batches.cut(rows, seed)
    outages = batches.random_outages(rows, seed)
    changes = batches.random_changes(rows, seed, CONFIG, outages)
    whole = batches.run_whole(rows, cut[-1].watermark_ms, CONFIG, take_step, outages, changes)
    assert batches.run_batches(cut, CONFIG, take_step, outages, changes, seed % 3) == whole


def run(
    rows: Log, group_id: str, until_ms: int, step: timeline.StepFunction = batches.checked_step
) -> Timeline:
    timeline = apply_rows(Timeline(group_id, None, CONFIG, step=step), rows)
    timeline.fire_until(until_ms)
    return timeline


@given(logs, seeds, st.sampled_from((1, 3, timeline.JOURNAL_MAX_STEPS)))
@examples(60)
def test_failed_rocketmq_request_does_not_affect_others(rows: Log, seed: int, journal: int) -> None:
    chosen = batches.one_fails_in(seed, 5)

    def request_fails(event: AnyEvent) -> bool:
        return isinstance(event, Received) and chosen(event)

    failed = {row.request_id for row in rows if request_fails(Received(row.request_id, row.request))}
    rest = [row for row in rows if row.request_id not in failed]
    until_ms = rows[-1].at_ms + 15_000
    defaults = timeline.Timeline.__init__.__kwdefaults__
    assert defaults is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "journal_max_steps", journal)
        for group_id in GROUPS:
            failing = run(rows, group_id, until_ms, batches.failing_step(request_fails))
            without = run(rest, group_id, until_ms)
            assert words(failing.drain_effects(), failed) == words(without.drain_effects(), failed)
            for group in (failing.group, without.group):
                if group is not None:
                    group.clock_ms = 0  # the failed request was here, at its time
            assert failing.group == without.group


def words(steps: list[AnyEffects], failed: set[str]) -> list[bytes]:
    """Return the effects, except answers to the requests that failed."""
    said: list[object] = []
    for effects in steps:
        said += [reply for reply in effects.replies if reply.response.request not in failed]
        said += effects.history
        said += effects.pushes if isinstance(effects, Effects) else effects.offsets
    return [msgspec.json.encode(word) for word in said]


def heartbeat(connection: str = "c1", client_id: str = "A", group_id: str = "a") -> RegisterConsumer:
    return RegisterConsumer(
        group_id=group_id,
        connection=connection,
        client_id=client_id,
        correlation_id=f"beat-{connection}",
        reply_partition=3,
        message_model=MessageModel.CLUSTERING,
    )


def release() -> ReleaseGroup:
    return ReleaseGroup(group_id="a", correlation_id="r", reply_partition=0, api_version=0)


def test_failed_expiry_scan_quarantines_its_group_until_release() -> None:
    timeline = Timeline("a", None, CONFIG, step=batches.failing_at(ScanDue))
    timeline.apply(Row(T0, "requests-0-0", heartbeat()))
    timeline.fire_until(T0 + 60_000)
    (fault,) = timeline.faults
    assert fault.cause == "scan at 1050000"
    assert timeline.next_deadline_ms() is None
    timeline.drain_effects()
    query = GetConsumerListByGroup(
        group_id="a", connection="c1", client_id="A", correlation_id="list", reply_partition=3
    )
    timeline.apply(Row(T0 + 100_000, "requests-0-1", query))
    timeline.apply(Row(T0 + 100_001, "requests-0-2", ConnectionClosed(group_id="a", connection="c1")))
    (refused, closed) = timeline.drain_effects()
    response = refused.replies[0].response
    assert isinstance(response, ConsumerListResponse)
    assert response.code is ResponseCode.SYSTEM_ERROR
    assert response.remark == "group a is quarantined: InjectedFault: chosen to fail"
    assert (closed.replies, closed.history) == ([], [])
    timeline.apply(Row(T0 + 200_000, "requests-0-3", release()))
    assert timeline.next_deadline_ms() == T0 + 250_000  # its connection was renewed at the release
    (released,) = timeline.drain_effects()
    assert isinstance(released.replies[0].response, ReleaseGroupResponse)
    assert [entry.type for entry in released.history] == [EntryType.RELEASED]
    timeline.fire_until(T0 + 250_000)
    assert timeline.group is None


def locking(client_id: str) -> LockBatchMq:
    return LockBatchMq(
        group_id="a",
        connection=f"c-{client_id}",
        client_id=client_id,
        correlation_id="k",
        reply_partition=0,
        mq_set=(MessageQueue("t", "b", 0),),
    )


def test_queue_lock_does_not_expire_during_a_quarantine() -> None:
    """The holder's renewals were refused, so the holder was not silent: no other client may lock
    the queue.
    """
    timeline = Timeline("a", None, CONFIG, step=batches.failing_at(ScanDue))
    timeline.apply(Row(T0, "requests-0-0", locking("A")))
    timeline.fire_until(T0 + 70_000)
    timeline.apply(Row(T0 + 600_000, "requests-0-1", release()))
    timeline.apply(Row(T0 + 600_001, "requests-0-2", locking("B")))
    response = timeline.drain_effects()[-1].replies[0].response
    assert isinstance(response, LockBatchMqResponse)
    assert response.lock_ok_mq_set == ()


def test_coordinator_outage_does_not_expire_connections() -> None:
    """Connections are renewed at the takeover, and requests from the outage are handled then."""
    outage = Outage(T0 + 1_000, T0 + 600_000)
    timeline = Timeline("a", None, CONFIG, outages=[outage])
    timeline.apply(Row(T0, "requests-0-0", heartbeat()))
    timeline.apply(Row(T0 + 300_000, "requests-0-1", heartbeat("c2", "B")))
    _, takeover, joined = timeline.drain_effects()
    assert [entry.type for entry in takeover.history] == [EntryType.TAKEN_OVER]
    assert isinstance(joined, Effects)
    assert notified(joined) == ["c1", "c2"]
    timeline.fire_until(outage.until_ms + CONFIG.rocketmq.channel_expired_timeout_ms)
    assert timeline.drain_effects() == []
    assert timeline.next_deadline_ms() == T0 + 650_000
    timeline.fire_until(T0 + 650_000)
    assert timeline.group is None


def test_rocketmq_request_older_than_a_scan_is_noted_as_applied_late() -> None:
    timeline = Timeline("a", None, CONFIG)
    timeline.apply(Row(T0, "requests-0-0", heartbeat()))
    timeline.apply(Row(T0 + 20_000, "requests-0-1", heartbeat("c2", "B")))
    timeline.fire_until(T0 + 60_000)  # c1 expires at the scan of T0 + 50,000
    timeline.drain_effects()
    timeline.apply(Row(T0 + 45_000, "requests-0-2", heartbeat("c2", "B")))
    (effects,) = timeline.drain_effects()
    (entry,) = effects.history
    assert (entry.type, entry.late_by_ms, entry.at_ms) == (EntryType.APPLIED_LATE, 5_000, T0 + 50_000)


def commit() -> OffsetCommit:
    return OffsetCommit(
        group_id="a",
        correlation_id="k",
        reply_partition=0,
        api_version=8,
        topics=[CommittedTopic("t", [CommittedPartition(0, 5)])],
    )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (heartbeat(), commit(), "group 'a' is a RocketMQ group; this is a Kafka request"),
        (commit(), heartbeat(), "group 'a' is a Kafka group; this is a RocketMQ request"),
    ],
)
def test_request_of_the_other_protocol_is_refused_without_changing_the_group(
    first: AnyRequest, second: AnyRequest, message: str
) -> None:
    timeline = Timeline("a", None, CONFIG)
    timeline.apply(Row(T0, "requests-0-0", first))
    timeline.drain_effects()
    before = batches.encode(timeline.group)
    timeline.apply(Row(T0 + 1, "requests-0-1", second))
    (effects,) = timeline.drain_effects()
    response = effects.replies[0].response
    assert isinstance(response, ErrorResponse)
    assert response.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert (response.error_message, response.rule) == (message, "X3")
    assert (effects.history, batches.encode(timeline.group)) == ([], before)


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        (commit(), ConnectionClosed(group_id="a", connection="c1")),
        (heartbeat(), TopicMetadata(group_id="a", topics={"t": None})),
    ],
)
def test_one_way_request_of_the_other_protocol_is_dropped(first: AnyRequest, lost: AnyRequest) -> None:
    timeline = Timeline("a", None, CONFIG)
    for request in (first, lost):
        timeline.apply(Row(T0, "requests-0-0", request))
    _, effects = timeline.drain_effects()
    assert (effects.replies, effects.history) == ([], [])


def test_random_rocketmq_logs_reach_the_rule_rows() -> None:
    """The logs above must reach states that need a long sequence of requests."""
    needs_more_than_requests = {
        EntryType.APPLIED_LATE,
        EntryType.QUARANTINED,
        EntryType.RELEASED,
        EntryType.TAKEN_OVER,
    }
    missing: set[object] = {*EntryType} - needs_more_than_requests
    missing |= {NotifyConsumerIdsChanged, CloseConnection, ErrorResponse}
    for seed in range(300):
        rows = realise(seed, 120)
        for group_id in GROUPS:
            for effects in run(rows, group_id, rows[-1].at_ms).drain_effects():
                missing -= {entry.type for entry in effects.history}
                missing -= {type(reply.response) for reply in effects.replies}
                if isinstance(effects, Effects):
                    missing -= {type(push.message) for push in effects.pushes}
        if not missing:
            return
    raise AssertionError(f"not reached: {missing}")
