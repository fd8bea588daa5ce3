"""The gateway's metrics and readiness: what is counted, and what holds the event loop up."""

import asyncio
import re
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from structlog.testing import capture_logs

from gateway import running
from gateway.metrics.collector import PREFIX, GatewayCollector
from gateway.metrics.numbers import FAMILIES, GatewayCounts, Numbers, counter_numbers, sum_numbers
from gateway.running import (
    BROKERS,
    CHECKS,
    COORDINATOR,
    LISTENING,
    LONG_STEP_S,
    Readiness,
    kafka_checks,
    watch_loop,
)
from tests.harness.gateway import COMMIT, HEARTBEAT, GatewayFixture, commit_fields, played
from tests.unit.gateway.test_server import beat, hold


def samples(numbers: Numbers) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(GatewayCollector(lambda: numbers))
    return registry


def value(numbers: Numbers, name: str, **labels: str) -> float | None:
    return samples(numbers).get_sample_value(f"{PREFIX}_{name}", labels)


@played
async def test_requests_are_counted_by_api_with_their_errors_and_bytes(world: GatewayFixture) -> None:
    for _ in range(3):
        await world.ask(HEARTBEAT, 4, **beat())
    await world.ask(COMMIT, 9, **commit_fields("nobody", ("orders", 0, 1)))
    await world.ask(ApiKey.ApiVersions, 0)
    numbers = world.gateway.numbers()
    for api, count in (("Heartbeat", 3), ("OffsetCommit", 1), ("ApiVersions", 1)):
        assert value(numbers, "request_duration_seconds_count", api=api) == count
    assert value(numbers, "request_errors_total", api="Heartbeat", error="UNKNOWN_MEMBER_ID") == 3
    assert value(numbers, "request_errors_total", api="OffsetCommit", error="GROUP_ID_NOT_FOUND") == 1
    assert value(numbers, "connections") == value(numbers, "connections_accepted_total") == 1
    assert value(numbers, "upstream_connections") == 1
    assert (value(numbers, "received_bytes_total") or 0) > 100
    assert (value(numbers, "sent_bytes_total") or 0) > 50


def test_unresponsive_gateway_does_not_drop_other_metrics_from_a_scrape() -> None:
    def stuck() -> Numbers:
        raise TimeoutError

    registry = CollectorRegistry()
    registry.register(GatewayCollector(stuck))
    Gauge("others", "Another part's metric.", registry=registry).set(7)
    text = generate_latest(registry).decode()
    assert "others 7.0" in text
    assert PREFIX not in text


@played
async def test_unknown_api_keys_share_one_metric_label(world: GatewayFixture) -> None:
    client = await world.client()
    for key in (2_000, 3_000):
        await client.send_bytes(bytes.fromhex("0000000a") + key.to_bytes(2, "big") + b"\0\0\0\0\0\1\xff\xff")
        await client.receive_bytes()
    assert value(world.gateway.numbers(), "request_duration_seconds_count", api="unknown") == 2


def test_every_metric_family_is_served_in_text_format() -> None:
    counts = GatewayCounts()
    counts.answered[12].add(0.02)
    counts.coordinator["Heartbeat"].add(0.2)
    text = generate_latest(samples(counter_numbers(counts))).decode()
    for name, family in FAMILIES.items():
        assert f"# HELP {PREFIX}_{name}" in text
        assert re.search(rf"# TYPE {PREFIX}_{name}\w* {family.kind}", text), name
    assert f'{PREFIX}_request_duration_seconds_bucket{{api="Heartbeat",le="0.025"}} 1.0' in text
    assert f'{PREFIX}_coordinator_duration_seconds_sum{{request="Heartbeat"}} 0.2' in text


def test_each_refusal_reason_has_a_series_from_the_start() -> None:
    """`increase` of a series that begins at 1 is 0: an alert would miss the first refusal."""
    numbers = counter_numbers(GatewayCounts())
    for reason in ("max.connections", "max.connections.per.ip", "connection_creation_rate", "draining"):
        assert value(numbers, "connections_refused_total", reason=reason) == 0


durations = st.lists(st.floats(0, 100), max_size=20)


@given(st.lists(durations, max_size=4))
def test_summed_metrics_of_processes_equal_those_of_one_process(parts: list[list[float]]) -> None:
    alone, together = [], GatewayCounts()
    for part in parts:
        counts = GatewayCounts()
        for seconds in part:
            for one in (counts, together):
                one.answered[12].add(seconds)
                one.refused["max.connections"] += 1
        counts.received_bytes = len(part)
        together.received_bytes += len(part)
        alone.append(counter_numbers(counts))
    total = sum_numbers(alone)
    expected = counter_numbers(together)
    for name in ("connections_refused", "received_bytes") if parts else ():
        assert total[name] == expected[name]
    for labels, (*buckets, _) in expected["request_duration_seconds"].items():
        assert total["request_duration_seconds"][labels][:-1] == buckets


FINE = dict.fromkeys(CHECKS)


def readiness(world: GatewayFixture) -> Readiness:
    return Readiness(world.gateway, kafka_checks(world.cluster, world.core))


@played
async def test_a_gateway_is_ready_until_it_drains(world: GatewayFixture) -> None:
    assert await readiness(world).checks() == FINE
    await world.gateway.drain(0)
    assert await readiness(world).checks() == {**FINE, LISTENING: "the gateway is draining"}


@played
async def test_gateway_without_a_broker_connection_is_not_ready(world: GatewayFixture) -> None:
    world.cluster.close()
    for writer in world.broker.writers:
        writer.transport.abort()
    await world.stop_broker()
    found = await readiness(world).checks()
    assert "no connection to the broker" in str(found[BROKERS])
    assert found == {**FINE, BROKERS: found[BROKERS]}


@played
async def test_gateway_without_a_coordinator_is_not_ready_unless_the_check_is_excluded(
    world: GatewayFixture,
) -> None:
    world.core.away = True
    ready = readiness(world)
    assert await ready.checks() == {**FINE, COORDINATOR: "the coordinator does not answer"}
    assert await ready.checks([COORDINATOR]) == {LISTENING: None, BROKERS: None}


@played
async def test_readiness_check_that_hangs_is_reported_as_failed(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_CHECK_TIMEOUT_S", 0.05)
    hold(world, "__readiness")
    assert (await readiness(world).checks())[COORDINATOR] == "no answer within 0 s"


LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


def use_processor(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def watched(run: Any, work: Coroutine[Any, Any, None]) -> tuple[GatewayCounts, list[Any]]:
    counts = GatewayCounts()

    async def play() -> None:
        with watch_loop(counts):
            await work
            await asyncio.sleep(3 * LONG_STEP_S)

    with capture_logs() as logs:
        run(play())
    return counts, logs


async def one_long_step() -> None:
    await asyncio.sleep(0)
    use_processor(20 * LONG_STEP_S)


async def many_short_steps(number: int = 200) -> None:
    for _ in range(number):
        use_processor(LONG_STEP_S / 20)
        await asyncio.sleep(0)


async def steps_beside_each_other() -> None:
    """One turn of the loop takes several times as long as a step may."""
    await asyncio.gather(*(many_short_steps(4) for _ in range(80)))


@LOOPS
def test_slow_event_loop_step_is_counted_and_its_code_location_logged(run: Any) -> None:
    counts, logs = watched(run, one_long_step())
    assert counts.long_steps == 1
    assert LONG_STEP_S <= counts.long_steps_s <= 21 * LONG_STEP_S
    (line,) = logs
    assert line["event"] == "the event loop was held up"
    assert "use_processor" in line["place"] or "one_long_step" in line["place"]


@LOOPS
@pytest.mark.parametrize("work", [many_short_steps, steps_beside_each_other])
def test_many_short_steps_are_not_reported_as_a_long_one(run: Any, work: Any) -> None:
    counts, logs = watched(run, work())
    assert (counts.long_steps, logs) == (0, [])
