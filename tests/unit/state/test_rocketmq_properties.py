"""Properties of every history of a group on RocketMQ's broker side."""

from collections.abc import Iterator

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import (
    AnyAnsweredRequest,
    AnyRequest,
    CloseConnection,
    ConnectionClosed,
    GatewayStarted,
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    QueryAssignment,
    RegisterConsumer,
    RegisterProducer,
    RegisterResponse,
    SetMessageRequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    Unanswered,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
)
from state.config import BrokerConfig
from state.protocol import Received, cause_of
from state.rocketmq.context import Effects
from state.rocketmq.group import ClientChannelInfo, RocketMqGroup, ScanDue, next_scan
from state.rocketmq.protocol import RocketMqEvent, RocketMqRequest, snapshot, step
from tests.harness.rocketmq_broker import of

CONFIG = BrokerConfig()
SCAN_MS = CONFIG.scan_interval_ms

BROKERS = ("b/0", "b/1")
ENVELOPE = {
    "group_id": st.just("G"),
    "connection": st.sampled_from(["b/0#1", "b/0#2", "b/1#1", "b/1#2"]),
    "client_id": st.sampled_from(["A", "B"]),
    "correlation_id": st.just(""),
    "reply_partition": st.just(0),
}
GATEWAY = {"gateway": st.sampled_from(["east", "west"]), "gateway_start": st.sampled_from(["1", "2"])}
CONFIGS = st.sampled_from([None, SubscriptionGroupConfig(), SubscriptionGroupConfig(False)])
QUEUES = st.lists(st.builds(MessageQueue, st.just("T"), st.just("b"), st.integers(0, 3)), max_size=4).map(
    tuple
)
TOPICS = st.sampled_from(["T", "U", "%RETRY%G", "%LMQ%x"])
SUBSCRIPTIONS = st.lists(
    st.builds(SubscriptionData, TOPICS, st.just("*"), st.integers(0, 2)), max_size=3
).map(tuple)
REQUESTS: st.SearchStrategy[AnyRequest] = st.one_of(
    st.builds(
        RegisterConsumer,
        **ENVELOPE,
        **GATEWAY,
        message_model=st.sampled_from(MessageModel),
        subscription_data_set=SUBSCRIPTIONS,
        heartbeat_fingerprint=st.integers(0, 1),
        is_without_sub=st.booleans(),
        group_config=CONFIGS,
    ),
    st.builds(RegisterProducer, **ENVELOPE, **GATEWAY),
    st.builds(UnregisterConsumer, **ENVELOPE, group_config=CONFIGS),
    st.builds(UnregisterProducer, **ENVELOPE),
    st.builds(
        ConnectionClosed,
        group_id=ENVELOPE["group_id"],
        connection=ENVELOPE["connection"],
        others=st.lists(ENVELOPE["connection"], max_size=2).map(tuple),
    ),
    st.builds(
        GatewayStarted,
        group_id=ENVELOPE["group_id"],
        **{**GATEWAY, "gateway_start": st.sampled_from(["", "1", "2"])},
    ),
    st.builds(GetConsumerListByGroup, **ENVELOPE),
    st.builds(LockBatchMq, **ENVELOPE, mq_set=QUEUES),
    st.builds(UnlockBatchMq, **ENVELOPE, mq_set=QUEUES),
    st.builds(
        QueryAssignment,
        **ENVELOPE,
        topic=TOPICS,
        message_model=st.sampled_from(MessageModel),
        strategy_name=st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONFIG"]),
        topic_queues=QUEUES,
    ),
    st.builds(
        SetMessageRequestMode,
        **ENVELOPE,
        topic=TOPICS,
        mode=st.sampled_from(MessageRequestMode),
        pop_share_queue_num=st.integers(-1, 2),
    ),
)
# Times cross lock lives and timeouts, and meet them exactly.
WAITS_MS = st.sampled_from([0, 1, 9_999, 10_000, 30_000, 60_000, 119_999, 120_000])
LIVES = st.lists(st.tuples(WAITS_MS, REQUESTS.map(lambda request: at_its_broker(request))), max_size=25)
Life = list[tuple[int, AnyRequest | None]]


def at_its_broker(request: AnyRequest) -> AnyRequest:
    if isinstance(request, Unanswered):
        return request
    return msgspec.structs.replace(request, broker=request.connection.partition("#")[0])


def live(life: Life, *, every_scan: bool = False) -> Iterator[tuple[RocketMqEvent, Effects]]:
    """Run random steps: requests, and either the scans that are due or all scans of RocketMQ."""
    group: RocketMqGroup | None = None
    now_ms = 0
    for place, (wait_ms, request) in enumerate(life):
        scanned_ms, now_ms = now_ms, now_ms + wait_ms
        for scan in _all_scans(scanned_ms, now_ms) if every_scan else _due_scans(group, now_ms):
            effects = step(group, "G", scan, scan.deadline_ms, CONFIG)
            group = effects.group
            yield scan, effects
        if request is None:
            continue
        event = Received(f"r{place}", request)
        effects = step(group, "G", event, now_ms, CONFIG)
        group = effects.group
        yield event, effects


def _all_scans(after_ms: int, until_ms: int) -> Iterator[ScanDue]:
    first_ms = (after_ms // SCAN_MS + 1) * SCAN_MS
    yield from map(ScanDue, range(first_ms, until_ms + 1, SCAN_MS))


def _due_scans(group: RocketMqGroup | None, until_ms: int) -> Iterator[ScanDue]:
    """`group` is changed in place by each scan. A group without state left has no entry that expires."""
    while group is not None and (scan := next_scan(group, CONFIG)) and scan.deadline_ms <= until_ms:
        yield scan


@given(life=LIVES)
def test_skipped_expiry_scans_would_have_changed_nothing(life: Life) -> None:
    def told(*, every_scan: bool) -> list[object]:
        spoken: list[object] = []
        for event, effects in live(life, every_scan=every_scan):
            view = (effects.replies, effects.pushes, effects.history)
            if isinstance(event, Received) or any(view):
                spoken.append((event, *view))
        return spoken

    assert told(every_scan=True) == told(every_scan=False)


def answers_of(broker: str, life: Life) -> list[object]:
    """Return the answers to the broker's requests and the messages to its connections, with their causes."""
    found: list[object] = []
    for event, effects in live(life):
        cause = cause_of(event)
        if isinstance(event, Received) and broker_of(event.request) == broker:
            for reply in effects.replies:
                response = reply.response
                if isinstance(response, RegisterResponse):
                    # The fingerprint lasts as long as the group, which the other broker prolongs.
                    response = msgspec.structs.replace(response, is_sub_change=True)
                found.append((cause, response))
        pushed = [push.message for push in effects.pushes if push.message.connection.startswith(broker)]
        found += [(cause, message) for message in pushed]
    return found


def broker_of(request: RocketMqRequest | None) -> str:
    """Return the broker that alone the request concerns, "" if it concerns all of them."""
    shared = LockBatchMq | UnlockBatchMq | SetMessageRequestMode
    return (
        request.broker if isinstance(request, AnyAnsweredRequest) and not isinstance(request, shared) else ""
    )


@given(life=LIVES)
def test_each_broker_answers_as_if_it_were_the_only_one(life: Life) -> None:
    for broker in BROKERS:
        alone: Life = [
            (wait_ms, request if broker_of(request) in ("", broker) else None) for wait_ms, request in life
        ]
        assert answers_of(broker, alone) == answers_of(broker, life)


def connections_in(group: RocketMqGroup | None) -> list[tuple[str, ClientChannelInfo]]:
    """Return the connections of consumers and producers."""
    return [] if group is None else [*group.channels(), *group.producers.items()]


@example(life=[(0, RegisterProducer(**of("A"))), (0, ConnectionClosed(group_id="G", connection="ch-A"))])
@given(life=LIVES)
def test_closed_connections_are_removed(life: Life) -> None:
    for event, effects in live(life):
        if isinstance(event, Received) and isinstance(event.request, ConnectionClosed):
            closed = {event.request.connection, *event.request.others}
            assert closed.isdisjoint(connection for connection, _ in connections_in(effects.group))


@given(life=LIVES)
def test_each_request_except_one_way_requests_has_one_response(life: Life) -> None:
    for event, effects in live(life):
        answered = []
        if isinstance(event, Received) and isinstance(event.request, AnyAnsweredRequest):
            answered = [(event.request_id, event.request.response_type)]
        assert [(reply.response.request, type(reply.response)) for reply in effects.replies] == answered


@given(life=LIVES)
def test_restarted_gateway_removes_connections_of_its_other_starts(life: Life) -> None:
    there: set[str] = set()
    for event, effects in live(life):
        before, there = there, set()
        for connection, info in connections_in(effects.group):
            there.add(connection)
            if isinstance(event, Received) and isinstance(event.request, GatewayStarted):
                started = event.request
                assert info.gateway != started.gateway or info.gateway_start == started.gateway_start
        gone = before - there
        if isinstance(event, Received) and isinstance(event.request, GatewayStarted) and gone:
            reasons = {entry.reason for entry in effects.history if entry.connection in gone}
            start = event.request.gateway_start
            what = "was started again" if start else "is gone"
            assert reasons == {f"gateway {event.request.gateway} {what}"}
            messages = [push.message for push in effects.pushes]
            closed = {message.connection for message in messages if isinstance(message, CloseConnection)}
            assert gone.isdisjoint(closed) if start else gone <= closed


@given(life=LIVES)
def test_rocketmq_state_is_minimal_and_encodable(life: Life) -> None:
    for _, effects in live(life):
        group = effects.group
        if group is None:
            continue
        assert not group.is_over()
        for table in group.consumers.values():
            assert bool(table.channels) == (table.message_model is not None)
            assert table.channels or not (table.subscriptions or table.differing)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(group), type=RocketMqGroup) == group
        scan = next_scan(group, CONFIG)
        assert scan is None or scan.deadline_ms > group.clock_ms
        if scan is None:
            assert not (any(group.channels()) or group.producers or group.locks)


@given(life=LIVES)
def test_next_expiry_scan_is_not_before_the_earliest_timer(life: Life) -> None:
    earliest_ms: int | None = None
    for event, effects in live(life):
        due = None if effects.group is None else next_scan(effects.group, CONFIG)
        known = [ms for ms in (earliest_ms, effects.earliest_armed_ms) if ms is not None]
        if due is not None:
            assert known
            assert isinstance(event, ScanDue) or min(known) <= due.deadline_ms
        earliest_ms = None if due is None else due.deadline_ms


@given(life=LIVES)
def test_history_is_numbered_without_gaps_and_shows_every_client_conflict(life: Life) -> None:
    seq: dict[str, int] = {}
    duplicates: set[tuple[str | None, str | None]] = set()
    differing: dict[str | None, dict[str, list[str]]] = {}
    for _, effects in live(life):
        for event in effects.history:
            seq[event.incarnation] = seq.get(event.incarnation, 0) + 1
            assert event.seq == seq[event.incarnation]
            if event.type is EntryType.DUPLICATE_CLIENT_ID:
                duplicates.add((event.broker, event.client_id))
            elif event.type is EntryType.DUPLICATE_CLIENT_ID_OVER:
                duplicates.remove((event.broker, event.client_id))
            elif event.type is EntryType.SUBSCRIPTIONS_DIFFER:
                differing[event.broker] = event.subscriptions or {}
            elif event.type is EntryType.SUBSCRIPTIONS_DIFFER_OVER:
                del differing[event.broker]
        tables = effects.group.consumers if effects.group is not None else {}
        assert duplicates == {(b, c) for b, table in tables.items() for c in table.duplicate_client_ids()}
        several = {b: found for b, t in tables.items() if len(found := t.different_subscriptions()) > 1}
        assert {b: {tuple(own) for own in by.values()} for b, by in differing.items()} == {
            b: set(found) for b, found in several.items()
        }
        assert effects.group is None or bool(snapshot(effects.group).different_subscriptions) == bool(several)
