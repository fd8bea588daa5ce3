"""Slots of connections: a client that takes all of them leaves room for the others."""

import pytest

from kafka_why.web import ClientSlots, client_network


def slots(total: int, idle: str = "", *, ends_busy: bool = True) -> ClientSlots[str]:
    return ClientSlots(total, lambda holder: holder in idle, ends_busy=ends_busy)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:0:9::", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", "loopback"),
        ("127.8.8.8", "loopback"),
        ("::1", "loopback"),
        ("", ""),
    ],
)
def test_addresses_within_one_clients_prefix_count_as_one_network(host: str, network: str) -> None:
    assert client_network(host) == network


def test_new_client_evicts_the_oldest_connection_of_the_network_with_most() -> None:
    full = slots(4)
    for host, holder in (("192.0.2.1", "a"), ("192.0.2.2", "b"), ("192.0.2.2", "c"), ("192.0.2.2", "d")):
        full.add(host, holder)
    assert full.add("192.0.2.3", "e") == "b"
    assert full.add("192.0.2.1", "f") == "c"
    assert full.add("192.0.2.1", "g") == "a", "no other has as many as it has itself"


def test_idle_connection_is_evicted_before_a_busy_one() -> None:
    full = slots(3, idle="b")
    for holder in "abc":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.1", "d") == "b"
    assert full.add("192.0.2.1", "e") == "a", "all are busy"


def test_new_connection_is_refused_where_busy_ones_are_not_evicted() -> None:
    full = slots(2, idle="d", ends_busy=False)
    for holder in "ab":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.2", "c") == "c"
    full.remove("c")
    full.remove("a")
    assert full.add("192.0.2.2", "d") is None
    assert full.add("192.0.2.2", "c") == "d", "it is idle"
