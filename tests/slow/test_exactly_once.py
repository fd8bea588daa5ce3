"""Kafka's own exactly-once applications through the gateway, and a planted bug that the checker catches."""

from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from tests.e2e.harness import wait_until
from tests.transactions import fleet
from tests.transactions.applications import APPLICATIONS
from tests.transactions.checker import Wrong
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
    running = Fleet(APPLICATIONS[name], broker.bootstrap_servers, lambda _: gateway, tmp_path)
    try:
        running.start()
        wait_until(lambda: running.seen >= RECORDS, f"{RECORDS} records of the output", PATIENCE_S)
        running.end_input()
        offsets, _ = running.drain()
        assert [*running.judge(offsets)] == []
    finally:
        running.stop()


def test_a_coordinator_that_takes_each_end_for_a_commit_loses_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checker of the campaign can fail: librdkafka's loop aborts some transactions by itself."""
    monkeypatch.setattr(fleet, "PENDING_TIMEOUT_S", 10.0)  # lost records never come
    result = campaign(1, 0, ["librdkafka"], step="trusting")
    assert not result.failure, result.failure
    assert result.wrongs["librdkafka"][Wrong.LOST] > 0
