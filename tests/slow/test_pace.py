"""The pace of clock records of a whole coordinator: rare without members, and on time for whoever comes."""

import time
from pathlib import Path

import pytest

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from streaming.service.clock.pace import QUIET_S
from streaming.service.options import Options
from tests.e2e.harness import (
    QUICK_SPARK,
    Member,
    clock_claims,
    coordinating,
    new_layout,
    read_topic,
    wait_until,
)

pytestmark = pytest.mark.e2e

INITIAL_DELAY_MS = 500
REST_INTERVAL_MS = 60_000


def test_clock_records_are_rare_without_members_and_frequent_with_one(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    layout = new_layout()
    options = Options(
        broker.client_config,
        tmp_path,
        layout,
        {"group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS)},
        ui_port=None,
        rest_interval_ms=REST_INTERVAL_MS,
        replica=False,
        spark=QUICK_SPARK,
    )
    with (
        coordinating(options) as coordinator,
        CoordinatorClient(broker.client_config, layout, client_id="client") as client,
    ):
        pace = coordinator._pace
        wait_until(pace.is_resting, "the rest before the first member")
        records = len(clock_claims(read_topic(broker.client_config, layout.requests_topic)))
        time.sleep(1)
        rested = len(clock_claims(read_topic(broker.client_config, layout.requests_topic)))
        assert rested - records <= 2 * layout.request_partitions, "one pause has ended at most"

        began_s = time.monotonic()
        member = Member.of(client, "group")
        assert member.join().result(timeout=60).generation_id == 1
        assert time.monotonic() - began_s < REST_INTERVAL_MS / 1000, "the initial delay waits for no pause"
        assert member.sync(1, {member.member_id: b"all"}).result(timeout=60).error_code is ErrorCode.NONE
        time.sleep(2 * QUIET_S)
        assert not pace.is_resting(), "the session of the silent member may end"

        assert member.leave() is ErrorCode.NONE
        wait_until(pace.is_resting, "the rest after the last member")
