"""A planted difference: the query's step has a bug that the replica's has not. The audit finds it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import Heartbeat
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Received
from streaming.query.operator import Operator
from streaming.service import coordinator as service
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from tests.e2e.early import answering
from tests.e2e.harness import QUICK_SPARK, new_layout, stable_member, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def differing_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """The core's step. Heartbeats of group `differs` are answered in another way."""
    effects = step(group, group_id, event, now_ms, config)
    if group_id != "differs" or not isinstance(event, Received) or not isinstance(event.request, Heartbeat):
        return effects
    (reply,) = effects.replies
    other = replace(reply.response, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return replace(effects, replies=[replace(reply, response=other)])


@pytest.fixture
def coordinator(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Coordinator]:
    monkeypatch.setattr(service, "Operator", partial(Operator, step=differing_step))
    options = Options(
        client_config=broker.client_config,
        folder=tmp_path / "coordinator",
        layout=new_layout(),
        spark=QUICK_SPARK,
        settings={"group.initial.rebalance.delay.ms": "0"},
    )
    with answering(options) as coordinator:
        yield coordinator


def test_a_difference_is_found_and_the_replica_is_seeded_anew(coordinator: Coordinator) -> None:
    options = coordinator.options
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        same, differs = stable_member(client, "same"), stable_member(client, "differs")
        assert same.heartbeat(1) is ErrorCode.NONE
        assert coordinator.replica().differences == 0
        seedings = coordinator.replica().seedings
        # The early answer is the first, if the replica does not stand still.
        wait_until(lambda: differs.heartbeat(1) is ErrorCode.NONE, "an early answer")
        wait_until(lambda: coordinator.replica().differences == 1, "the audit finds it")
        wait_until(
            lambda: "in another way than the query" in (coordinator.status.current.alarm or ""), "the alarm"
        )
        wait_until(lambda: coordinator.replica().seedings > seedings, "the replica is seeded anew")
        assert same.heartbeat(1) is ErrorCode.NONE
