"""Gateways as a service, with unmodified clients: a rolling restart, quotas, draining."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import ThrottleEvent

from embedded.broker import EmbeddedBroker
from gateway.limits import Limits
from gateway.net.server import GatewayOptions
from gateway.running import RunningGateway
from gateway.service import running
from gateway.upstream.connections import Address
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import (
    RECORDS,
    ConfluentMember,
    Member,
    PythonMember,
    consume,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import history_of, wait_until
from tests.harness.ports import gateway_port

pytestmark = pytest.mark.e2e

HOST = "127.0.0.1"
DRAIN_S = 10.0


def test_a_rolling_restart_of_two_gateways_loses_no_record_and_no_member(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str
) -> None:
    """All clients move to the other gateway and go on, without a rebalance. Both have one address, as behind
    a load balancer: the kernel gives a connection to one that accepts it.
    """
    group_id, servers = new_group(), f"{HOST}:{gateway_port(above=3)}"
    both = [replace(options, listen=Address.parse(servers), shares_ports=True)] * 2
    stacks = [ExitStack() for _ in both]
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(own).enter_context(running(one))
            for own, one in zip(stacks, both, strict=True)
        ]
        members = [
            stack.enter_context(closing(kind(servers, group_id, topic)))
            for kind in (PythonMember, ConfluentMember)
        ]
        share(*members)
        joined = len(history_of(options.client_config, options.layout, group_id))
        sent = 0
        for number, one in enumerate(both):
            gateways[number].drain(DRAIN_S)
            stacks[number].close()
            sent = consume_more(broker, topic, members, sent)  # while it is away
            gateways[number] = stacks[number].enter_context(running(one))
            sent = consume_more(broker, topic, members, sent)
        history = history_of(options.client_config, options.layout, group_id)
        moved = {EntryType.MEMBER_ADDED, EntryType.MEMBER_REMOVED, EntryType.PREPARING_REBALANCE}
        assert [entry for entry in history[joined:] if entry.type in moved] == []
    assert sum(entry.type is EntryType.MEMBER_ADDED for entry in history) == len(members)


def consume_more(broker: EmbeddedBroker, topic: str, members: Sequence[Member], sent: int) -> int:
    """Produce the next records, which the members receive once each. Return the total number."""
    produce(broker.bootstrap_servers, topic, range(sent, sent + RECORDS))
    assert consume(RECORDS, *members, since=sent) == list(range(sent, sent + RECORDS))
    for member in members:
        member.commit()
    return sent + RECORDS


def throttled(gateway: RunningGateway) -> float:
    return sum(value for (value,) in gateway.numbers()["requests_throttled"].values())


def test_clients_over_their_quota_are_throttled_and_stay_connected(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("")
    limits = Limits(quota_window_num=1, quota_window_s=2.0)
    events: list[ThrottleEvent] = []
    with ExitStack() as stack:
        gateway = stack.enter_context(running(replace(options, quotas=quotas, limits=limits)))
        servers, group_id = str(gateway.address), new_group()
        python = stack.enter_context(
            closing(PythonMember(servers, group_id, topic, settings={"client_id": "kafka-python"}))
        )
        confluent = stack.enter_context(
            closing(
                ConfluentMember(
                    servers,
                    group_id,
                    topic,
                    settings={"client.id": "librdkafka", "throttle_cb": events.append},
                )
            )
        )
        share(python, confluent)
        quotas.write_text('[[quotas]]\nclient-id = "<default>"\ngroup_request_rate = 0.5\n')
        produce(broker.bootstrap_servers, topic, range(RECORDS))
        assert consume(RECORDS, python, confluent) == list(range(RECORDS))
        # The heartbeats, one in a second, are more than the quota.
        wait_until(lambda: throttle_time_ms(python) > 0, "kafka-python's metric of the throttle time")
        wait_until(lambda: any(event.throttle_time > 0 for event in events), "librdkafka's throttle event")
        assert throttled(gateway) > 0
        history = history_of(options.client_config, options.layout, group_id)
    assert not any(entry.type is EntryType.MEMBER_REMOVED for entry in history)


def throttle_time_ms(member: PythonMember) -> float:
    """Return the greatest throttle time that a broker reported to the client."""
    metrics: dict[str, dict[str, float]] = member.do(member.consumer.metrics)
    return max(
        (value for group in metrics.values() for name, value in group.items() if name == "throttle-time-max"),
        default=0.0,
    )
