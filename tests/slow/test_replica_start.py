"""A start after a replica has answered: its early answers stay what they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from state.errors import ErrorCode
from streaming.service.options import Options
from tests.e2e.early import answers, clients_of, markers
from tests.e2e.harness import QUICK_SPARK, new_layout, read_topic, stable_member

pytestmark = pytest.mark.e2e


def test_a_start_marks_each_partition_and_goes_on_after_what_was_answered_early(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    layout = new_layout(reply_partitions=2)
    options = Options(
        client_config=broker.client_config,
        folder=tmp_path / "coordinator",
        layout=layout,
        spark=QUICK_SPARK,
        settings={"group.initial.rebalance.delay.ms": "0"},
        first_request_wait_s=1.0,
        batch_interval_ms=2_000,
    )
    with clients_of(options) as client:
        member = stable_member(client, "again")
    first = markers(read_topic(broker.client_config, layout.responses_topic))
    assert first == {0: 1, 1: 1}
    with clients_of(options) as client:
        assert replace(member, client=client).heartbeat(1) is ErrorCode.NONE
    assert markers(read_topic(broker.client_config, layout.responses_topic)) == {0: 2, 1: 2}
    early, of_query = answers(broker, layout)
    assert early
    assert all(set(of_query[request]) == set(values) for request, values in early.items())
