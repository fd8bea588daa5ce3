"""Whose requests the brokers see: what is refused at the start, and which broker a first contact reaches."""

import pytest

from connections.client_config import ClientConfig
from gateway.limits import Limits
from gateway.net.options import GatewayOptions
from gateway.security.authentication import Security
from gateway.security.settings import SecurityError
from gateway.service import serving
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from records.layout import TopicLayout

HOST = "127.0.0.1"


@pytest.mark.parametrize("properties", [{}, {"security.protocol": "SSL"}])
def test_brokers_without_sasl_cannot_authenticate_clients(properties: dict[str, str]) -> None:
    options = GatewayOptions(
        ClientConfig("broker.invalid:9092", properties),
        TopicLayout.named("t"),
        Address(HOST, 0),
        security=Security.read(None, None, None, by_broker=True),
    )
    with pytest.raises(SecurityError, match=r"security\.protocol has no SASL"), serving(options):
        pass


def test_first_contacts_spread_over_the_live_brokers() -> None:
    """Else all would wait for the first broker where it hangs."""
    bootstrap = Address("bootstrap", 9092)
    cluster = Cluster([bootstrap], Limits())
    cluster.learn({node: Address(f"broker-{node}", 9092) for node in range(3)}, all_of_them=True)
    cluster.learn({7: Address("gone", 9092)})
    drawn = [cluster.addresses() for _ in range(200)]
    assert {addresses[0].host for addresses in drawn} == {"broker-0", "broker-1", "broker-2"}
    assert all(len(set(addresses)) == 4 and addresses[-1] == bootstrap for addresses in drawn)
