"""The partition of a group's requests: Kafka's default for keys, as in Java and kafka-python.

librdkafka has another default. Its producers have to set `partitioner=murmur2_random`.
"""

from functools import lru_cache

from kafka.partitioner.default import murmur2

_GROUPS_REMEMBERED = 10_000


@lru_cache(_GROUPS_REMEMBERED)
def partition_of(group_id: str, partitions: int) -> int:
    """The partition of the requests topic that holds this group."""
    return int(murmur2(group_id.encode()) & 0x7FFFFFFF) % partitions
