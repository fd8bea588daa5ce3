"""The ticker on a real broker: the times that its records attest, and when they attest none."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader
from streaming.service.clock.pace import MembersPace
from streaming.service.clock.ticker import NOTHING_ATTESTED_MS, MembersWatcher, Ticker
from streaming.service.topics import prepare_topics
from tests.e2e.harness import clock_claims, new_layout, read_topic, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PARTITIONS = 3
INTERVAL_MS = 50


@pytest.fixture
def layout(broker: EmbeddedBroker) -> TopicLayout:
    layout = new_layout(request_partitions=PARTITIONS)
    prepare_topics(broker.client_config, layout)
    return layout


@contextmanager
def ticking(broker: EmbeddedBroker, layout: TopicLayout, **options: Any) -> Iterator[Ticker]:
    ticker = Ticker(
        broker.client_config, layout.requests_topic, PARTITIONS, interval_ms=INTERVAL_MS, **options
    )
    ticker.start()
    try:
        yield ticker
    finally:
        ticker.stop()


def wait_for_rounds(ticker: Ticker, rounds: int = 3) -> None:
    """Wait until the attested time has advanced this often."""
    for _ in range(rounds):
        before_ms = ticker.attested_ms
        wait_until(lambda before_ms=before_ms: ticker.attested_ms > before_ms, "the ticker's next round")  # type: ignore[misc]


def rounds_of(broker: EmbeddedBroker, layout: TopicLayout) -> list[tuple[set[int], list[int]]]:
    """Return for each round of a single ticker the attested times (in truth one) and the append times of its
    records. The last round may be incomplete, because a reader sees some partitions before others; it is
    omitted.
    """
    by_partition: list[list[tuple[int, int]]] = [[] for _ in range(PARTITIONS)]
    for partition, claim_ms, append_ms in clock_claims(
        read_topic(broker.client_config, layout.requests_topic)
    ):
        by_partition[partition].append((claim_ms, append_ms))
    return [
        ({claim for claim, _ in records}, [append for _, append in records])
        for records in zip(*by_partition, strict=False)
    ]


@pytest.mark.parametrize("lag_ms", [0, 700])
def test_clock_record_attests_no_time_after_the_previous_rounds_append_times(
    broker: EmbeddedBroker, layout: TopicLayout, lag_ms: int
) -> None:
    began_s = time.monotonic()
    with ticking(broker, layout, clock_lag_ms=lag_ms) as ticker:
        wait_for_rounds(ticker)
        assert ticker.alarm is None
        age_s = ticker.age_s()
        assert age_s < time.monotonic() - began_s, "it counts from the last round"
    rounds = rounds_of(broker, layout)
    assert rounds[0][0] == {NOTHING_ATTESTED_MS}
    assert len(rounds) > 1
    for (_, appended_ms), (claims_ms, _) in pairwise(rounds):
        assert claims_ms == {min(appended_ms) - 1 - lag_ms}


def test_concurrent_tickers_never_attest_too_early(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    with ticking(broker, layout) as one, ticking(broker, layout) as other:
        wait_for_rounds(one)
        wait_for_rounds(other)
    claims = clock_claims(read_topic(broker.client_config, layout.requests_topic))
    assert claims
    assert all(claim_ms < append_ms for _, claim_ms, append_ms in claims)


@pytest.mark.parametrize("step_ms", [-6_000, 3_600_000])
def test_attested_time_stands_still_while_the_broker_clock_is_wrong(
    broker: EmbeddedBroker, layout: TopicLayout, step_ms: int
) -> None:
    apart_ms = [0]
    with ticking(broker, layout, wall_ms=lambda: time.time() * 1000 + apart_ms[0]) as ticker:
        wait_for_rounds(ticker)
        apart_ms[0] = step_ms
        wait_until(lambda: ticker.alarm is not None, "the alarm")
        stood_at_ms = ticker.attested_ms
        wait_until(lambda: ticker.age_s() > 4 * INTERVAL_MS / 1000, "some rounds in which time stands still")
        assert ticker.attested_ms == stood_at_ms
        apart_ms[0] = 0
        wait_for_rounds(ticker)
        assert ticker.alarm is None


def comes_to_rest(broker: EmbeddedBroker, layout: TopicLayout) -> bool:
    """Return True if no clock record is written in a time that normally has many."""
    rounds = len(rounds_of(broker, layout))
    time.sleep(10 * INTERVAL_MS / 1000)
    return len(rounds_of(broker, layout)) == rounds


def read_all(broker: EmbeddedBroker, layout: TopicLayout, pace: MembersPace) -> None:
    """Report a batch that has read all requests, as the supervisor does."""
    with TopicReader(broker.client_config) as reader:
        ends = reader.ends(reader.partitions_of(layout.requests_topic))
    pace.batch_read({partition.partition: end for partition, end in ends.items()})


def test_clock_records_are_written_rarely_while_no_group_has_members(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.service.clock.ticker.POLL_S", 0.05)
    pace = MembersPace(PARTITIONS, INTERVAL_MS, rest_interval_ms=600_000, quiet_s=0.2)
    watcher = MembersWatcher(broker.client_config, layout, pace)
    producer = kafka_clients.producer(broker.client_config)
    producer.send(layout.groups_topic, key=b"group", value=b'{"members":[{}]}').get(timeout=30)
    watcher.start()
    try:
        with ticking(broker, layout, pace=pace) as ticker:
            wait_for_rounds(ticker)
            read_all(broker, layout, pace)
            wait_until(pace.needs_members_check, "the last request is some time ago")
            wait_for_rounds(ticker, 10)
            assert not pace.is_resting(), "the group has a member"
            producer.send(layout.groups_topic, key=b"group", value=b'{"members":[]}').get(timeout=30)
            wait_until(pace.is_resting, "the ticker's rest")
            # What was under way when the rest began may still come.
            wait_until(lambda: comes_to_rest(broker, layout), "no more clock records")
            producer.send(layout.requests_topic, key=b"group", value=b"{}", partition=1).get(timeout=30)
            read_all(broker, layout, pace)
            wait_for_rounds(ticker)
            assert not pace.is_resting()
    finally:
        watcher.stop()
        producer.close()
