"""Settings of share groups that are the coordinator's and the brokers': a gateway before a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import uvloop
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from gateway.net.options import GatewayOptions
from gateway.net.server import Gateway
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import Coordinators
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from tests.e2e.gateway_clients import new_group
from tests.harness.gateway import HOST, CoreBackend, RawClient
from tests.harness.share_frames import SOFTWARE
from tests.harness.waiting import WAIT_TIMEOUT_S

pytestmark = pytest.mark.e2e

LOCKS, SESSION, RESET = "share.record.lock.duration.ms", "share.session.timeout.ms", "share.auto.offset.reset"
INVALID_CONFIG = 40
GROUP = 32  # ConfigResource.Type
_DEFAULTS = CoordinatorConfig()


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    with closing(writer):
        client = RawClient(reader, writer)
        await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
        yield client


@asynccontextmanager
async def gateway_of(
    broker: EmbeddedBroker, settings: CoordinatorConfig = _DEFAULTS
) -> AsyncIterator[Address]:
    """A gateway whose coordinator has the share groups: the pure core."""
    core = CoreBackend()
    core.config = settings
    config, listen = broker.client_config, Address(HOST, 0)
    options = GatewayOptions(config, TopicLayout.named(), listen, share_groups=Coordinators.OURS)
    gateway = Gateway(options, Cluster.of(config, options.limits), core, core)
    try:
        await gateway.start()
        yield gateway.address
    finally:
        await gateway.close()


async def altered(client: RawClient, group: str, api: ApiKey, **values: str) -> tuple[int, str | None]:
    names = {"locks": LOCKS, "session": SESSION, "reset": RESET}
    operation = {"config_operation": 0} if api is ApiKey.IncrementalAlterConfigs else {}
    configs = [{"name": names[name], "value": value, **operation} for name, value in values.items()]
    entry = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    (answer,) = (await client.ask(api, 1, resources=[entry])).responses
    return answer.error_code, answer.error_message


async def described(client: RawClient, group: str) -> dict[str, str]:
    entry: dict[str, Any] = {"resource_type": GROUP, "resource_name": group, "configuration_keys": None}
    (found,) = (await client.ask(ApiKey.DescribeConfigs, 4, resources=[entry])).results
    assert found.error_code == 0
    names = [config.name for config in found.configs]
    assert len(names) == len(set(names))
    return {c.name: c.value for c in found.configs if c.name in (LOCKS, SESSION, RESET)}


def test_sn24_both_have_what_is_set_and_nobody_what_one_refuses(broker: EmbeddedBroker) -> None:
    async def play() -> None:
        group, other = new_group(), new_group()
        at_broker = Address.parse(broker.bootstrap_servers)
        async with (
            gateway_of(broker) as address,
            connected(address) as client,
            connected(at_broker) as direct,
        ):

            async def both_have(group: str, locks: str, session: str, reset: str) -> None:
                """A broker answers from the metadata log, which it may read after the controller answers."""
                expected = {LOCKS: locks, SESSION: session, RESET: reset}
                async with asyncio.timeout(WAIT_TIMEOUT_S):
                    while await described(direct, group) != expected:
                        await asyncio.sleep(0.01)
                assert await described(client, group) == expected

            alter = ApiKey.IncrementalAlterConfigs
            assert await altered(client, group, alter, locks="20000", session="50000") == (0, None)
            await both_have(group, locks="20000", session="50000", reset="latest")
            error, text = await altered(client, group, alter, locks="1", session="51000")
            assert error == INVALID_CONFIG and text is not None and "1000" in text
            error, text = await altered(client, group, alter, reset="earliest", session="1")
            assert error == INVALID_CONFIG and text is not None and SESSION in text
            # The metadata log is in order: a broker that has this change would have those, too.
            assert await altered(client, other, alter, session="52000") == (0, None)
            await both_have(other, locks="30000", session="52000", reset="latest")
            await both_have(group, locks="20000", session="50000", reset="latest")
            assert await altered(client, group, ApiKey.AlterConfigs, reset="earliest") == (0, None)
            await both_have(group, locks="30000", session="45000", reset="earliest")

    uvloop.run(play())
