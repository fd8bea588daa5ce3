"""Reports of `why` on RocketMQ's groups: real histories, and special cases."""

import re
from datetime import UTC
from typing import Any
from unittest.mock import call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.history_reader import decode_any_entry
from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    MessageRequestMode,
    RegisterConsumer,
    SetMessageRequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kafka_why.why.rocketmq.changes import report
from kafka_why.why.rocketmq.text import report_text
from kafka_why.wording import Clock
from records.truncation import encode_event
from state.config import CoordinatorConfig
from state.rocketmq.context import Effects
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import snapshot
from state.timeline import Timeline
from tests.harness.common import apply_rows
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS
from tests.harness.rocketmq_broker import QUEUES, Broker, notified, of
from tests.harness.rocketmq_log import realise
from tests.unit.state.rocketmq_story import BEGIN_MS, END_MS, night

SILENT = SubscriptionGroupConfig(notify_consumer_ids_changed_enable=False)


def text_of(history: list[HistoryEntry], now_ms: int = 1_000_000, since_ms: int | None = None) -> str:
    return report_text(report("G", history, now_ms, since_ms), Clock(UTC))


def block(text: str, number: int) -> str:
    """Return the block of one change."""
    (found,) = re.findall(rf"^#{number}  .*?(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found).rstrip()


class Clocked(Broker):
    """A broker that receives its requests one second apart."""

    def join(self, client_id: str, connection: str, *topics: str, **given: object) -> None:
        self.now_ms += 1_000
        self.heartbeat(client_id, connection, *topics, **given)  # type: ignore[arg-type]

    def leave(self, client_id: str, connection: str) -> None:
        self.now_ms += 1_000
        self.unregister(client_id, connection)

    def beat(self, number: int, broker: str, topic: str) -> Effects:
        """Handle a heartbeat of `worker-<number>` at one of several brokers, 10 ms after the last request."""
        self.now_ms += 10
        return self.send(
            RegisterConsumer(
                **of(f"worker-{number}", f"worker-{number}@{broker}"),
                broker=broker,
                client_address=f"10.0.0.{number}:5",
                message_model=MessageModel.CLUSTERING,
                subscription_data_set=(SubscriptionData(topic), SubscriptionData("%RETRY%G")),
            )
        )

    def wait_until(self, at_ms: int) -> None:
        self.now_ms = at_ms

    def mode(self, client_id: str, mode: MessageRequestMode) -> None:
        request = SetMessageRequestMode(
            **of(client_id), topic="T", mode=mode, pop_share_queue_num=2, group_config=SILENT
        )
        self.set_mode(request)


def test_duplicate_client_id_is_reported_first_with_connections_time_and_remedy() -> None:
    headline, remedy, *_ = report_text(report("g", night(), END_MS), Clock(UTC)).splitlines()
    trap = "worker-1 on c1 and c5 since 2026-11-21 03:04:00.000 UTC"
    assert headline == f"Group g of RocketMQ has a DUPLICATE CLIENT ID: {trap}"
    assert remedy.startswith("To do ")
    assert "give it a client id of its own" in remedy


def test_duplicate_client_id_is_reported_from_beginning_to_end_with_all_connections() -> None:
    broker = Clocked()
    for client_id, connection in (("A", "c1"), ("A", "c2"), ("A", "c3")):
        broker.join(client_id, connection)
    broker.leave("A", "c1")
    during = report("G", broker.history, broker.now_ms)
    assert [(t.connections, t.began, t.ended, t.to_ms) for t in during.traps] == [
        (["c1", "c2", "c3"], 2, None, None)
    ]
    broker.leave("A", "c2")
    after = report("G", broker.history, broker.now_ms)
    assert [(t.ended, t.to_ms) for t in after.traps] == [(5, 5_000)]
    text = report_text(after, Clock(UTC))
    assert text.startswith("Group G of RocketMQ has 1 client since 1970-01-01 00:00:05.000 UTC\n")
    assert "Duplicates  A on c1 and c2 and c3, for 3.0 s, from #2 to #5" in text
    assert "over      client id A is on a single connection again" in block(text, 5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            [
                call.join("A", "c1", model=MessageModel.BROADCASTING),
                call.join("A", "c2", model=MessageModel.BROADCASTING),
            ],
            {
                0: ["Group G of RocketMQ has 1 client since"],
                2: [
                    "duplicate client id, harmless: A on c1 and c2\n",
                    "notified  none: the group broadcasts, or its notifications are switched off",
                ],
            },
            id="one id of two that broadcast is no alarm",
        ),
        pytest.param(
            [
                *(call.join(f"worker-{number}", f"c{number}") for number in (1, 2, 3)),
                call.wait_until(60_000),
                call.heartbeat("worker-3", "c3"),
                call.scan(),
            ],
            {
                4: [
                    "client expired: worker-1, worker-2",
                    "why       worker-1: silent for 129000 ms, over 120000",
                    "trigger   scan\n",
                    "notified  none: the other clients notice when their own timers fire",
                    "clients   worker-3",
                ]
            },
            id="a scan that finds several is one change and tells nobody",
        ),
        pytest.param(
            [
                call.join("A", "c1"),
                call.join("B", "c2"),
                call.leave("A", "c1"),
                call.wait_until(3_001),
                call.close("c2"),
            ],
            {
                0: ["Group G of RocketMQ has no consumers since"],
                3: ["why       unregistered", "notified  client A unregistered; connections notified: 1"],
                4: ["why       its connection closed", "notified  none: the group has no connections left"],
            },
            id="clients leave until nobody is left to be told",
        ),
        pytest.param(
            [
                call.join("A", "c1", "T"),
                call.join("A", "c1", "U"),
                call.join("B", "c1", "U"),
                call.leave("nobody", "c9"),
            ],
            {
                0: ["Topics   U"],
                2: ["why       heartbeat of client A: +U, -T"],
                3: ["notified  none, although a client id changed"],
                4: ["notified  client nobody unregistered; connections notified: 1"],
            },
            id="topics change, a connection changes hands, a needless notification",
        ),
        pytest.param(
            [call.join("A", "c1"), call.join("B", "c2"), call.join("A", "c2")],
            {3: ["DUPLICATE CLIENT ID: A on c1 and c2", "notified  none, although a client id changed"]},
            id="a connection takes another client's id",
        ),
        pytest.param(
            [call.join("A", "c1", config=SILENT)],
            {
                0: ["all connections were notified 0 times"],
                1: ["none: the group broadcasts, or its notifications are switched off"],
            },
            id="notifications are switched off",
        ),
        pytest.param(
            [call.lock("A", *QUEUES[:2]), call.wait_until(60_001), call.lock("B", *QUEUES[:1])],
            {
                1: [
                    "1970-01-01 00:01:00.001  locks taken over: B",
                    "client A did not renew its locks within 60000 ms",
                ]
            },
            id="locks are taken over",
        ),
        pytest.param(
            [call.join("A", "c1"), call.wait_until(1_001), call.mode("A", MessageRequestMode.POP)],
            {0: ["to clients that query it: POP, each client's queues are shared with"]},
            id="the coordinator deals out queues",
        ),
    ],
)
def test_reported_change_names_what_happened_and_who_was_notified(
    steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]], expected: dict[int, list[str]]
) -> None:
    broker = Clocked()
    for name, arguments, fields in steps:
        getattr(broker, name)(*arguments, **fields)
    text = text_of(broker.history)
    for number, words in expected.items():
        shown = block(text, number) if number else text
        assert [said for said in words if said not in f"{shown}\n"] == []


def test_rocketmq_history_with_a_lost_beginning_is_noted() -> None:
    history = night()
    begin = next(n for n, event in enumerate(history) if event.client_id == "worker-3")
    text = text_of(history[begin:], END_MS)
    assert f"the history begins at entry {history[begin].seq}" in text
    assert "at least" in text_of(history[begin : begin + 2], END_MS)
    assert not report("g", history[begin:], END_MS).complete


def test_missing_entries_are_reported_and_duplicate_ones_ignored() -> None:
    history = night()
    assert text_of([*history, *history[3:9]], END_MS) == text_of(history, END_MS)
    lost = [event for event in history if event.seq != 6]
    assert f"entries are missing: 6 of life {history[0].incarnation}" in text_of(lost, END_MS)
    assert not report("g", lost, END_MS).complete


def test_oversized_entry_without_connections_still_reports_the_duplicate_id() -> None:
    small = [decode_any_entry(encode_event(event, max_bytes=1)) for event in night()]
    history = [event for event in small if isinstance(event, HistoryEntry)]
    assert "DUPLICATE CLIENT ID: worker-1 on several connections" in text_of(history, END_MS)


def test_since_omits_earlier_changes() -> None:
    found = report("g", night(), END_MS, since_ms=BEGIN_MS + 205_000)
    assert [change.number for change in found.changes] == [6, 7]
    assert [(trap.began, trap.ended) for trap in found.traps] == [(5, 6), (7, None)]
    assert "Changes     2 since 2026-11-21 03:03:25.000" in report_text(found, Clock(UTC))


def gateway_story() -> Clocked:
    """Return two brokers with worker-1, a subscriber of orders, and worker-2, a subscriber of users."""
    broker = Clocked()
    for number, topic in ((1, "orders"), (2, "users")):
        broker.now_ms += 60_000
        for name in ("b/0", "b/1"):
            broker.beat(number, name, topic)
    return broker


def test_clients_with_different_subscriptions_are_named_with_addresses_effect_and_remedy() -> None:
    broker = gateway_story()
    for number, topic in ((1, "orders"), (2, "users"), (1, "orders")):
        broker.now_ms += 30_000
        assert notified(broker.beat(number, "b/0", topic))  # each replaces the topics of the other
    during = report("G", broker.history, broker.now_ms)
    assert [(c.kind, [x.client_id for x in c.concerned]) for c in during.changes] == [
        ("client connected", ["worker-1", "worker-1"]),
        ("different subscriptions", ["worker-2", "worker-2"]),
    ]
    text = report_text(during, Clock(UTC))
    assert text.startswith("Group G of RocketMQ has different subscriptions\n")
    for said in (
        "different subscriptions, since 1970-01-01 00:02:00.030: orders: worker-1 (10.0.0.1:5); "
        "users: worker-2 (10.0.0.2:5). A broker keeps only the topics",
        "Nobody reads the shares of worker-2 in orders, the shares of worker-1 in users",
        "give all clients of the group the same topics and filters, or a group of their own",
        "Clients      worker-1, worker-2",
    ):
        assert said in text
    broker.now_ms += 30_000
    for name in ("b/0", "b/1"):
        broker.beat(2, name, "orders")
    after = report("G", broker.history, broker.now_ms)
    assert [(d.brokers, d.began, d.from_ms, d.to_ms) for d in after.differences] == [
        (["b/0", "b/1"], 2, 120_030, 240_090)
    ]
    assert after.symptoms == []


def test_different_subscriptions_are_recorded_only_when_they_begin_and_end() -> None:
    broker = gateway_story()
    before = len(broker.history)
    for _ in range(20):
        for number, topic in ((1, "orders"), (2, "users")):
            broker.now_ms += 15_000
            broker.beat(number, "b/0", topic)
    assert len(broker.history) == before
    broker.close("worker-2@b/0")
    assert [entry.type.value for entry in broker.history[before:]] == [
        "ConsumerRemoved",
        "ConsumersNotified",
        "SubscriptionsDifferOver",
    ]


def test_flapping_expired_and_unseen_clients_are_named_with_addresses_and_remedies() -> None:
    broker = Clocked()
    for name in ("b/0", "b/1"):
        broker.beat(1, name, "orders")
    for _ in range(3):
        broker.now_ms += 20_000
        broker.beat(2, "b/0", "orders")
        broker.beat(1, "b/0", "orders")
        broker.beat(1, "b/1", "orders")
        broker.now_ms += 20_000
        broker.close("worker-2@b/0", "the broker ended the connection")
    broker.beat(2, "b/1", "orders")
    while any(info.client_id == "worker-1" for _, info in broker.group_now().channels()):
        broker.beat(2, "b/1", "orders")
        broker.scan()
    found = report("G", broker.history, broker.now_ms)
    assert [(s.kind.value, s.client_ids) for s in found.symptoms] == [
        ("clients that come and go", ["worker-2"]),
        ("connections that expired unseen", ["worker-1"]),
    ]
    flapping, expired = found.symptoms
    assert flapping.reason.startswith(
        "worker-2 (10.0.0.2:5) came and went 3 times within 80.1 s: the broker ended the connection. "
    )
    assert expired.reason.startswith("2 connections of worker-1 (10.0.0.1:5) fell silent and expired.")
    broker.beat(3, "b/0", "orders")
    broker.now_ms += 40_000
    (views, *_) = report("G", broker.history, broker.now_ms).symptoms
    assert views.reason.startswith("b/1 does not list worker-3 (10.0.0.3:5). A client gets the list")


def played(seed: int, length: int) -> list[tuple[str, list[HistoryEntry], object, int]]:
    """Return the histories of a random log's groups, the groups at their ends, and the time of the end."""
    rows = realise(seed, length)
    found: list[tuple[str, list[HistoryEntry], object, int]] = []
    for group_id in GROUPS:
        timeline = apply_rows(Timeline(group_id, None, CoordinatorConfig()), rows)
        said = [event for effects in timeline.drain_effects() for event in effects.history]
        if history := [event for event in said if isinstance(event, HistoryEntry)]:
            found.append((group_id, history, timeline.group, rows[-1].at_ms))
    return found


@given(st.integers(0, 2**32 - 1), st.integers(5, 150))
@examples(40)
def test_report_of_a_random_log_ends_with_the_cores_state(seed: int, length: int) -> None:
    for group_id, history, group, end_ms in played(seed, length):
        if isinstance(group, RocketMqGroup):
            found = report(group_id, history, end_ms)
            there = {c.connection: (c.client_id, c.broker, c.subscriptions) for c in found.consumers}
            assert there == {
                c: (info.client_id, info.broker, info.subscriptions) for c, info in group.channels()
            }
            on = {trap.client_id for trap in found.traps if trap.to_ms is None}
            assert on == snapshot(group).duplicate_client_ids.keys()
            differing = {b for d in found.differences if d.to_ms is None for b in d.brokers}
            assert differing >= {broker for broker, table in group.consumers.items() if table.differing}
            assert bool(differing) == bool(snapshot(group).different_subscriptions)
            assert report_text(found, Clock(UTC)).startswith(f"Group {group_id} of RocketMQ has ")
