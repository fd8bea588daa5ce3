"""`groups abort-pending` on a real broker. The conformance scripts have the offsets of transactions, with and
without a replica; tests/slow/test_transaction_timelines.py has what may go wrong on the way.
"""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from cli.groups import groups
from embedded.broker import EmbeddedBroker
from tests.harness.shared import PREFIX
from tests.harness.transactions import NONE, NOTHING, TV1, TV2, Wire, pend, producer_of, stable_offset

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_command_drops_pending_offsets(broker: EmbeddedBroker, wire: Wire, group: str, topic: str) -> None:
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
