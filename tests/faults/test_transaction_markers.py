"""Ends of a transaction that need a broker of their own: a timeout, and a restart (decision 23)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from tests.harness.transactions import NONE, TV1, TV2, Producer, Wire
from tests.harness.witness import EPOCHS_LATER, Witness

pytestmark = pytest.mark.e2e

_TIMEOUT_MS = 1_000


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    overrides = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with EmbeddedBroker(folder, overrides=overrides) as broker:
        yield broker


@pytest.mark.parametrize("protocol", [TV1, TV2])
def test_s1_s3_a_timeout_writes_an_abort_of_the_next_epoch(own_broker: EmbeddedBroker, protocol: int) -> None:
    """TE9: no request of a client ends the transaction."""
    witness = Witness.on(own_broker.client_config)
    with Wire(own_broker.bootstrap_servers) as wire:
        producer = witness.joined(wire, protocol, _TIMEOUT_MS)
        assert witness.the_marker(producer.identity) == (1, False)
        assert producer.end(commit=True) != NONE


def test_s1_a_restart_of_the_broker_changes_nothing(own_broker: EmbeddedBroker) -> None:
    """A killed broker forgets neither the partitions of an open transaction nor the written markers."""
    witness = Witness.on(own_broker.client_config)
    with Wire(own_broker.bootstrap_servers) as wire:
        ended = {protocol: witness.joined(wire, protocol) for protocol in (TV1, TV2)}
        began = {protocol: producer.identity for protocol, producer in ended.items()}
        for producer in ended.values():
            assert producer.end(commit=True) == NONE
            witness.markers_of(producer.identity.producer_id)
        open_ones = {protocol: witness.joined(wire, protocol) for protocol in (TV1, TV2)}
    own_broker.kill()
    own_broker.start()
    with Wire(own_broker.bootstrap_servers) as wire:
        for protocol, producer in open_ones.items():
            assert witness.the_marker(began[protocol]) == (EPOCHS_LATER[protocol], True)
            going_on = Producer(wire, producer.transactional_id, protocol)
            going_on.identity = producer.identity
            going_on.wait_until("Ongoing")
            assert going_on.end(commit=protocol == TV1) == NONE
            assert witness.the_marker(producer.identity) == (EPOCHS_LATER[protocol], protocol == TV1)
