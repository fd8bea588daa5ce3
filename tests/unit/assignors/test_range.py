"""A rule of Kafka's RangeAssignor that no recorded answer of Kafka shows (test_live.py)."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition


def test_racks_of_partitions_that_are_not_told_are_unknown() -> None:
    group = {name: MemberSubscription(Subscription(("t",), rack_id=rack)) for name, rack in ("ax", "by")}
    answer = ASSIGNORS["range"].assign({"t": 3}, group, {"t": [frozenset("y")]})
    assert answer == {"a": [TopicPartition("t", 1), TopicPartition("t", 2)], "b": [TopicPartition("t", 0)]}
