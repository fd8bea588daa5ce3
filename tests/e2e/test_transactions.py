"""Offsets in transactions, through the gateway and the coordinator, on a real broker: by hand, and by
unmodified clients. tests/faults/test_transaction_timelines.py has what may go wrong on the way.
"""

import json
import uuid
from typing import Any

import pytest
from click.testing import CliRunner

from cli.groups import groups
from embedded.broker import EmbeddedBroker
from tests.harness.shared import PREFIX
from tests.harness.transactions import (
    NONE,
    NOTHING,
    PROTOCOLS,
    TV1,
    TV2,
    UNSTABLE,
    Producer,
    Wire,
    fetched,
    pend,
    producer_of,
    stable_offset,
)

pytestmark = pytest.mark.e2e

ENDINGS = pytest.mark.parametrize("commit", [True, False])


@PROTOCOLS
def test_5_1_5_2_an_offset_is_pending_until_the_transaction_ends(
    wire: Wire, group: str, topic: str, protocol: int
) -> None:
    """Of one producer, without a wait in between: in the first protocol both transactions have one epoch."""
    producer = producer_of(wire, protocol)
    pend(producer, group, topic, 100)
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert fetched(wire, group, topic, stable=False) == (NOTHING, NONE)
    assert producer.end(commit=True) == NONE
    pend(producer, group, topic, 101, partition=1)
    assert producer.end(commit=False) == NONE
    assert [stable_offset(wire, group, topic, partition) for partition in (0, 1)] == [100, NOTHING]
    assert fetched(wire, group, topic, stable=False) == (100, NONE)


@pytest.mark.one_form
def test_tg8_a_producer_without_a_transaction_is_refused(wire: Wire, group: str, topic: str) -> None:
    """By a real broker's answers. An old version adds nothing to the transaction."""
    producer = producer_of(wire, TV1)
    told = [producer.commit_offsets(group, {(topic, 0): 1}, version) for version in range(6)]
    assert told == [48, 48, 48, 48, 120, NONE]
    assert producer.end(commit=False) == NONE


@pytest.mark.one_form
def test_tg8_other_producers_are_refused(wire: Wire, group: str, topic: str) -> None:
    for protocol, version in ((TV1, 3), (TV2, 5)):
        producer = producer_of(wire, protocol)
        pend(producer, group, topic, 1)
        for identity, told in (
            (producer.identity._replace(epoch=producer.identity.epoch + 1), 47),
            (producer.identity._replace(producer_id=producer.identity.producer_id + 10_000), 49),
        ):
            stranger = Producer(wire, producer.transactional_id, protocol)
            stranger.identity = identity
            assert stranger.commit_offsets(group, {(topic, 0): 2}, version) == told
        unknown = Producer(wire, f"unknown-{uuid.uuid4()}", protocol)
        unknown.identity = producer.identity
        assert unknown.commit_offsets(group, {(topic, 0): 2}, version) == 49
        assert producer.end(commit=False) == NONE


def test_pending_offsets_are_dropped_by_hand(
    broker: EmbeddedBroker, wire: Wire, group: str, topic: str
) -> None:
    """`groups abort-pending`: what the brokers decide later changes nothing."""

    def abort_pending(*options: str) -> list[dict[str, Any]]:
        servers = broker.client_config.bootstrap_servers
        given = ["abort-pending", "--bootstrap-servers", servers, "--prefix", PREFIX, "--group", group]
        result = CliRunner().invoke(groups, [*given, "-o", "json", *options])
        assert result.exit_code == 0, result.output
        return list(json.loads(result.stdout))

    producers = [producer_of(wire, protocol) for protocol in (TV1, TV2)]
    for partition, producer in enumerate(producers):
        pend(producer, group, topic, 100, partition)
    shown = abort_pending()
    assert [(one["transactional_id"], one["dropped"]) for one in shown] == [
        (producer.transactional_id, False) for producer in producers
    ]
    for partition, producer in enumerate(producers):
        (dropped,) = abort_pending("--transactional-id", producer.transactional_id, "--execute")
        assert (dropped["producer_id"], dropped["dropped"]) == (producer.identity.producer_id, True)
        assert stable_offset(wire, group, topic, partition) == NOTHING
        assert producer.end(commit=True) == NONE
    assert abort_pending() == []
    assert [stable_offset(wire, group, topic, partition) for partition in (0, 1)] == [NOTHING, NOTHING]
