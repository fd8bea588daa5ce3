"""Kafka's own exactly-once applications through the gateway."""

from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from tests.e2e.harness import wait_until
from tests.transactions.applications import APPLICATIONS
from tests.transactions.fleet import Fleet

pytestmark = pytest.mark.e2e

RECORDS = 300
PATIENCE_S = 240.0


@pytest.mark.parametrize("name", ["java-copier", "streams"])
def test_kafkas_own_applications_handle_each_record_once(
    name: str, broker: EmbeddedBroker, gateway: str, tmp_path: Path
) -> None:
    """Two instances of TransactionalMessageCopier, which aborts one of three transactions, and of a word
    count of Kafka Streams with `exactly_once_v2`.
    """
    running = Fleet(APPLICATIONS[name], broker.bootstrap_servers, lambda _: gateway, tmp_path, instances=2)
    try:
        running.start()
        wait_until(lambda: running.seen >= RECORDS, f"{RECORDS} records of the output", PATIENCE_S)
        running.end_input()
        offsets, _ = running.drain()
        assert [*running.judge(offsets)] == []
    finally:
        running.stop()
