"""Whether a gateway is ready, and why not."""

import pytest

from gateway import running
from gateway.running import BROKERS, CHECKS, COORDINATOR, LISTENING, Readiness, kafka_readiness
from tests.harness.gateway import GatewayFixture, played
from tests.unit.gateway.test_pipelining import hold

FINE = dict.fromkeys(CHECKS)


def readiness(world: GatewayFixture) -> Readiness:
    return kafka_readiness(world.gateway, world.cluster, world.core)


@played
async def test_a_gateway_is_ready_until_it_drains(world: GatewayFixture) -> None:
    assert await readiness(world).checks() == FINE
    await world.gateway.drain(0)
    assert await readiness(world).checks() == {**FINE, LISTENING: "the gateway is draining"}


@played
async def test_gateway_without_a_broker_connection_is_not_ready(world: GatewayFixture) -> None:
    world.cluster.close()
    for writer in world.broker.writers:
        writer.transport.abort()
    await world.stop_broker()
    found = await readiness(world).checks()
    assert "no connection to the broker" in str(found[BROKERS])
    assert found == {**FINE, BROKERS: found[BROKERS]}


@played
async def test_gateway_without_a_coordinator_is_not_ready_unless_the_check_is_excluded(
    world: GatewayFixture,
) -> None:
    world.core.away = True
    ready = readiness(world)
    assert await ready.checks() == {**FINE, COORDINATOR: "the coordinator does not answer"}
    assert await ready.checks([COORDINATOR]) == {LISTENING: None, BROKERS: None}


@played
async def test_readiness_check_that_hangs_is_reported_as_failed(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_CHECK_TIMEOUT_S", 0.05)
    hold(world, "__readiness")
    assert (await readiness(world).checks())[COORDINATOR] == "no answer within 0 s"
