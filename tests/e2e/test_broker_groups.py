"""A consumer that took the broker's address instead of the gateway's is seen, and nothing else is."""

import asyncio
import uuid
from contextlib import closing

import pytest

from bench.load import kafka_groups
from embedded.broker import EmbeddedBroker
from kafka_why.connections.address import Address
from kafka_why.groups.gather import BrokerGroup, BrokerGroups
from tests.e2e.gateway_clients import PythonMember, share
from tests.e2e.harness import wait_until
from tests.harness.shared import Coordinated

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_group_of_the_brokers_own_coordinator_is_reported_once(
    broker: EmbeddedBroker, coordinated: Coordinated, topic: str
) -> None:
    """Beside it is a group whose members' bytes are no subscription that could be decoded."""
    group_id, strange_id = f"lost-{uuid.uuid4()}", f"strange-{uuid.uuid4()}"
    asyncio.run(kafka_groups.form(Address.parse(broker.bootstrap_servers), [strange_id]))
    found: list[BrokerGroup] = []
    watched = BrokerGroups(broker.client_config, found.append)
    through_gateway = f"here-{uuid.uuid4()}"
    with (
        closing(PythonMember(coordinated.gateway, through_gateway, topic)) as here,
        closing(
            PythonMember(broker.bootstrap_servers, group_id, topic, settings={"client_id": "c1"})
        ) as lost,
    ):
        share(here)
        share(lost)
        watched.start()
        try:
            wait_until(lambda: group_id in {group.group_id for group in watched.groups}, "the group")
            (group,) = [group for group in watched.groups if group.group_id == group_id]
            lost.close()
            wait_until(lambda: group_id not in {group.group_id for group in watched.groups}, "it has gone")
        finally:
            watched.stop()
    assert (group.protocol, group.state, group.clients) == ("classic", "Stable", ["c1 at /127.0.0.1"])
    names = [group.group_id for group in found]
    assert names.count(group_id) == names.count(strange_id) == 1
    assert through_gateway not in names
    assert [name for name in names if name.startswith(("spark", "group-coordinator"))] == []
