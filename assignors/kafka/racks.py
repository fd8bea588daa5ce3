"""Whether racks matter, and which partitions are near a member (KIP-881, AbstractPartitionAssignor)."""

from collections.abc import Collection

from kafka_why.contract.protocols.subscriptions import PartitionRacks

_UNKNOWN: frozenset[str] = frozenset()


def replica_racks(racks: PartitionRacks, topic: str, number: int) -> frozenset[str]:
    """Return the racks of one partition; the empty set if they are unknown."""
    racks_of_topic = racks.get(topic, ())
    return racks_of_topic[number] if number < len(racks_of_topic) else _UNKNOWN


def are_racks_of_use(member_racks: Collection[str], partition_racks: Collection[frozenset[str]]) -> bool:
    """Whether a rack-aware assignment can differ: some member is near some partitions but not near all.

    If every partition has replicas on the same racks, each member is near all of them or none.
    """
    everywhere = _UNKNOWN.union(*partition_racks)
    return not everywhere.isdisjoint(member_racks) and any(racks != everywhere for racks in partition_racks)
