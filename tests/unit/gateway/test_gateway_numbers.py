"""The gateway's metrics: what is counted, the sum over processes, and the text for Prometheus."""

import re

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.metrics.collector import PREFIX, GatewayCollector
from gateway.metrics.numbers import FAMILIES, GatewayCounts, Numbers, counted, sum_numbers
from tests.harness.gateway import GatewayFixture, played
from tests.harness.gateway_requests import COMMIT, HEARTBEAT, commit_fields
from tests.unit.gateway.test_pipelining import beat


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
    text = generate_latest(samples(counted(counts))).decode()
    for name, family in FAMILIES.items():
        assert f"# HELP {PREFIX}_{name}" in text
        assert re.search(rf"# TYPE {PREFIX}_{name}\w* {family.kind}", text), name
    assert f'{PREFIX}_request_duration_seconds_bucket{{api="Heartbeat",le="0.025"}} 1.0' in text
    assert f'{PREFIX}_coordinator_duration_seconds_sum{{request="Heartbeat"}} 0.2' in text


def test_each_refusal_reason_has_a_series_from_the_start() -> None:
    """`increase` of a series that begins at 1 is 0: an alert would miss the first refusal."""
    numbers = counted(GatewayCounts())
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
        alone.append(counted(counts))
    total = sum_numbers(alone)
    expected = counted(together)
    for name in ("connections_refused", "received_bytes") if parts else ():
        assert total[name] == expected[name]
    for labels, (*buckets, _) in expected["request_duration_seconds"].items():
        assert total["request_duration_seconds"][labels][:-1] == buckets
