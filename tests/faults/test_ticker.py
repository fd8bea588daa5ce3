"""The ticker while its broker is away."""

import threading
import time
from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from streaming.service.topics import prepare_topics
from tests.e2e.harness import clock_claims, new_layout, read_topic, wait_until
from tests.e2e.test_ticker import PARTITIONS, ticking, wait_for_rounds

pytestmark = pytest.mark.e2e


def test_time_stands_still_while_the_broker_is_away(tmp_path: Path) -> None:
    layout = new_layout(request_partitions=PARTITIONS)
    with EmbeddedBroker(tmp_path) as broker:
        prepare_topics(broker.client_config, layout)
        with ticking(broker, layout) as ticker:
            wait_for_rounds(ticker)
            threads = threading.active_count()
            broker.kill()
            wait_until(lambda: ticker.alarm is not None, "the alarm")
            assert "the broker acknowledges no clock record" in str(ticker.alarm)
            stood_at_ms = ticker.attested_ms
            broker.start()
            wait_until(lambda: ticker.alarm is None, "time going on")
            assert ticker.attested_ms > stood_at_ms
            assert threading.active_count() <= threads
            claims = clock_claims(read_topic(broker.client_config, layout.requests_topic))
            assert all(claim_ms < append_ms for _, claim_ms, append_ms in claims)
            broker.stop()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 30  # to stop it does not need the broker
