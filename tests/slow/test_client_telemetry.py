"""Kafka's own consumers and librdkafka push their metrics to a gateway (KIP-714). A consumer that does not
poll for max.poll.interval.ms leaves, and `why` reports its last poll.
"""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from gateway.net.server import GatewayOptions
from gateway.service import serving
from kafka_why.contract.telemetry import (
    LAST_HEARTBEAT,
    LAST_POLL,
    POLL_IDLE_RATIO,
    MemberTelemetry,
    decode_telemetry,
)
from tests.e2e.gateway_clients import ConfluentMember, new_group, share
from tests.e2e.harness import read_topic, wait_until
from tests.harness.kafkas_consumers import JavaConsumers
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

INTERVAL_MS = 1_000
POLL_INTERVAL_MS = 6_000
SECOND_MS = 1_000  # clients say whole seconds
LATE_MS = 60_000  # of a client on a busy machine
TOLD = r"its last poll was (\d+) s before(?:, its last heartbeat \d+ s before)?; max.poll.interval.ms is 6 s"


def why(options: GatewayOptions, group_id: str) -> str:
    brokers = options.client_config.bootstrap_servers
    told = CliRunner().invoke(main, ["why", group_id, "--bootstrap-servers", brokers, "--prefix", PREFIX])
    return told.stdout


def told_of_polls(options: GatewayOptions, group_id: str) -> Callable[[], bool]:
    """Return a check that `why` reports how long a member had not polled, and the limit it exceeded."""

    def is_told() -> bool:
        seconds = [int(found) for found in re.findall(TOLD, why(options, group_id))]
        return any(POLL_INTERVAL_MS - SECOND_MS <= one * 1_000 < LATE_MS for one in seconds)

    return is_told


def said(options: GatewayOptions, group_id: str) -> list[MemberTelemetry]:
    records = read_topic(options.client_config, options.layout.telemetry_topic)
    found = [decode_telemetry(record.value, MemberTelemetry) for record in records]
    return [record for record in found if record is not None and record.group_id == group_id]


def test_why_names_the_member_that_did_not_poll(options: GatewayOptions, topic: str, tmp_path: Path) -> None:
    group, other = new_group(), new_group()
    limit = str(POLL_INTERVAL_MS)
    with (
        serving(replace(options, telemetry_interval_ms=INTERVAL_MS)) as address,
        JavaConsumers(str(address), tmp_path) as java,
        closing(ConfluentMember(str(address), group, topic)) as librdkafkas,
    ):
        classic = java.join(group, topic, max_poll_interval_ms=limit)
        of_epochs = java.join(other, topic, is_of_consumer_protocol=True, max_poll_interval_ms=limit)
        share(classic, librdkafkas)
        share(of_epochs)
        classic.hold()
        of_epochs.hold()
        wait_until(told_of_polls(options, group), "why says when the member of the classic protocol polled")
        # The rebalance may still be under way, and then other lines, of other widths, stand beside this one.
        assert re.search(r"it said +consumer poll timeout has expired", why(options, group))
        wait_until(told_of_polls(options, other), "why says so of the member of the consumer protocol")
        by_client = {
            record.client_id.partition("-")[0]: record.metrics.keys() for record in said(options, group)
        }
        assert by_client["consumer"] >= {LAST_POLL, LAST_HEARTBEAT, POLL_IDLE_RATIO}
        assert POLL_IDLE_RATIO in by_client["rdkafka"]
        assert LAST_POLL not in by_client["rdkafka"], "why can say more of librdkafka's clients"
