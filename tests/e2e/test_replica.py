"""The replica on a real broker: it answers early, the query confirms it, and its end harms nobody."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from clients.coordinator_client import CoordinatorClient
from clients.views_barrier import wait_for_views
from embedded.broker import EmbeddedBroker
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.fresh_groups import FreshGroups, Listing
from gateway.coordinator.groups import GroupsReader
from gateway.limits import Limits
from state.errors import ErrorCode
from streaming.replica.pipes import Phase
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from tests.e2e.early import answering, answers, pid_of_replica
from tests.e2e.harness import (
    QUICK_SPARK,
    new_layout,
    stable_member,
    wait_until,
)
from tests.harness.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

# Nobody who waits for a batch gets an answer sooner than this, on average.
INTERVAL_MS = 2_000
LISTINGS = 10


@pytest.fixture(scope="module")
def options(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Options:
    return Options(
        client_config=broker.client_config,
        folder=tmp_path_factory.mktemp("replica"),
        layout=new_layout(),
        spark=QUICK_SPARK,
        settings={"group.initial.rebalance.delay.ms": "0"},
        batch_interval_ms=INTERVAL_MS,
    )


@pytest.fixture(scope="module")
def coordinator(options: Options) -> Iterator[Coordinator]:
    with answering(options) as coordinator:
        yield coordinator


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[CoordinatorClient]:
    options = coordinator.options
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        yield client


def test_each_answer_comes_early_and_again_with_the_same_bytes(
    broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "early")
    for _ in range(40):  # while the replica stands still, the query answers
        assert member.heartbeat(1) is ErrorCode.NONE
    wait_for_views(client)
    early, of_query = answers(broker.client_config, coordinator.options.layout)
    assert len(early) >= 20
    assert early == {request: of_query[request] for request in early}
    wait_until(lambda: coordinator.replica().compared >= len(early), "the audit has compared all of them")
    assert coordinator.replica().differences == 0


def test_a_request_that_waits_for_views_is_left_to_the_query(
    broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    before, _ = answers(broker.client_config, coordinator.options.layout)
    wait_for_views(client)
    early, of_query = answers(broker.client_config, coordinator.options.layout)
    assert early == before
    assert len(of_query) > len(early)


def test_a_replica_that_is_killed_is_seeded_anew_and_answers_on(
    broker: EmbeddedBroker, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "killed")
    seedings = coordinator.replica().seedings
    os.kill(pid_of_replica(), signal.SIGKILL)
    assert member.heartbeat(1) is ErrorCode.NONE, "the query answers"
    wait_until(
        lambda: coordinator.replica().seedings > seedings and coordinator.replica().phase == Phase.ANSWERING,
        "the replica answers again",
    )
    answered = coordinator.replica().answers

    def answers_early() -> bool:
        assert member.heartbeat(1) is ErrorCode.NONE
        return coordinator.replica().answers > answered

    wait_until(answers_early, "an early answer")
    assert coordinator.replica().differences == 0


def test_a_list_has_what_was_answered_early_before_the_query_has_it(
    coordinator: Coordinator, client: CoordinatorClient
) -> None:
    options = coordinator.options
    member = stable_member(client, "listed")
    states, took_s = asyncio.run(listed(options, client))
    assert states["listed"] == "Stable"
    member.leave()
    assert asyncio.run(listed(options, client))[0]["listed"] == "Empty"
    # Each but the first would wait for a whole interval.
    assert took_s < (LISTINGS - 1) * INTERVAL_MS / 1000 / 2


async def listed(options: Options, client: CoordinatorClient) -> tuple[dict[str, str], float]:
    """The states of all groups as a gateway lists them, and in what time it does so LISTINGS times."""
    with GroupsReader(options.client_config, options.layout) as groups:
        await until(lambda: groups.is_read)
        backend = CoordinatorBackend(client, Limits())
        fresh = FreshGroups(backend, groups, Limits(), options.layout.request_partitions)
        began_s = time.monotonic()
        found = [await fresh.shown(None, states_of) for _ in range(LISTINGS)]
        took_s = time.monotonic() - began_s
        assert None not in found
        return found[0] or {}, took_s


async def states_of(groups: Listing) -> dict[str, str]:
    return {group.group_id: group.state for group in groups}
