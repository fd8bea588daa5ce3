"""A group of unmodified consumers that leaves its assignment to the coordinator."""

from contextlib import closing

import pytest
from kafka import KafkaAdminClient

from gateway.service import GatewayOptions
from state.history import EventType
from tests.e2e.gateway_clients import (
    PARTITIONS,
    RECORDS,
    PythonMember,
    assert_coordinated,
    consume,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import history_of, wait_until

pytestmark = pytest.mark.e2e

ASSIGNOR = "coordinator:uniform"


def test_members_are_told_what_they_have_and_keep_it(
    gateway: str, options: GatewayOptions, topic: str
) -> None:
    group_id = new_group()
    produce(gateway, topic, range(RECORDS))
    with closing(PythonMember(gateway, group_id, topic, assignor=ASSIGNOR)) as first:
        share(first)
        assert consume(RECORDS, first) == list(range(RECORDS))
        before = first.partitions()
        with closing(PythonMember(gateway, group_id, topic, assignor=ASSIGNOR)) as second:
            share(first, second)
            assert first.partitions() < before
        share(first)
        grow(gateway, topic)
        wait_until(lambda: first.partitions() == set(range(PARTITIONS + 2)), "the new partitions")
    assert_coordinated(options, group_id, joins=2)
    stable = [e for e in history_of(options.bootstrap_servers, options.layout, group_id) if is_stable(e)]
    assert {(entry.rule, entry.protocol_name) for entry in stable} == {("M4", ASSIGNOR)}


def is_stable(entry: object) -> bool:
    return getattr(entry, "type", None) is EventType.STABLE


def grow(servers: str, topic: str) -> None:
    """Two partitions more, of which the leader hears by itself."""
    with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_partitions({topic: PARTITIONS + 2})
