"""Kafka's own exactly-once applications through the gateway, and a planted bug that the checker catches."""

from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from tests.e2e.harness import wait_until
from tests.transactions.applications import APPLICATIONS
from tests.transactions.checker import Wrong, judge_offsets
from tests.transactions.fleet import Fleet
from tests.transactions.running import campaign

pytestmark = pytest.mark.e2e

RECORDS = 300
PATIENCE_S = 240.0


@pytest.mark.parametrize("name", ["java-copier", "streams"])
def test_kafkas_own_applications_handle_each_record_once(
    name: str, broker: EmbeddedBroker, gateway: str, tmp_path: Path
) -> None:
    """Three instances of TransactionalMessageCopier, which aborts one of three transactions, and of a word
    count of Kafka Streams with `exactly_once_v2`.
    """
    fleet = Fleet(APPLICATIONS[name], broker.bootstrap_servers, lambda _: gateway, tmp_path)
    try:
        fleet.start()
        wait_until(lambda: fleet.seen >= RECORDS, f"{RECORDS} records of the output", PATIENCE_S)
        fleet.end_input()
        offsets, _ = fleet.drain()
        assert [*judge_offsets(fleet.fed, offsets.committed, offsets.pending)] == []
        assert [*fleet.application.judge(fleet.fed, fleet.read_output())] == []
    finally:
        fleet.stop()


def test_a_coordinator_that_takes_each_end_for_a_commit_loses_records() -> None:
    """The checker of the campaign can fail: librdkafka's loop aborts some transactions by itself."""
    result = campaign(1, 0, ["librdkafka"], step="trusting")
    assert not result.failure, result.failure
    assert result.wrongs["librdkafka"][Wrong.LOST] > 0
