"""Rules of the broker's UniformAssignor that no recorded answer of Kafka shows (test_live.py)."""

from assignors.kafka import BROKER_ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition


def test_it_is_the_brokers_default() -> None:
    assert list(BROKER_ASSIGNORS) == ["uniform", "range"]


def test_racks_change_nothing() -> None:
    group = {name: MemberSubscription(Subscription(("t",), rack_id=rack)) for name, rack in ("ax", "by")}
    racks = {"t": [frozenset("y"), frozenset("x")]}
    answer = BROKER_ASSIGNORS["uniform"].assign({"t": 2}, group, racks)
    assert answer == {"a": [TopicPartition("t", 0)], "b": [TopicPartition("t", 1)]}
