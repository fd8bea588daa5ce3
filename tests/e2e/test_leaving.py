"""A member that leaves: the short test that docs/tests.md explains."""

from contextlib import closing

import pytest

from gateway.net.server import GatewayOptions
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import ConfluentMember, PythonMember, share
from tests.e2e.harness import history_of

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("library", [PythonMember, ConfluentMember])
def test_partitions_of_a_leaving_member_go_to_the_remaining_members(
    library: type[PythonMember] | type[ConfluentMember],
    gateway: str,
    options: GatewayOptions,
    topic: str,
    group: str,
) -> None:
    with closing(library(gateway, group, topic)) as stays:
        with closing(library(gateway, group, topic)) as leaves:
            share(stays, leaves)
        share(stays)
    history = history_of(options.client_config, options.layout, group)
    removed = [entry.reason for entry in history if entry.type is EntryType.MEMBER_REMOVED]
    assert removed == ["left the group"] * 2
