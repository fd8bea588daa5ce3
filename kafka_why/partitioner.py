"""The partition of a group's requests: Kafka's default for keys, as in Java and kafka-python.

librdkafka has another default. Its producers have to set `partitioner=murmur2_random`.
"""

from functools import lru_cache

from kafka.partitioner.default import murmur2

_GROUPS_REMEMBERED = 10_000
# Clients choose the ids, and an id may have 32,767 bytes. So caches keep no ids of more characters than this.
REMEMBERED_MAX_CHARACTERS = 256


def hash_of(group_id: str) -> int:
    """Return the hash of a group id, of which `partition_of` is the remainder. It takes some 20 us."""
    return int(murmur2(group_id.encode()) & 0x7FFFFFFF)


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition of the requests topic that holds this group."""
    if len(group_id) > REMEMBERED_MAX_CHARACTERS:
        return _partition_of(group_id, partitions)
    return _remembered(group_id, partitions)


def _partition_of(group_id: str, partitions: int) -> int:
    return hash_of(group_id) % partitions


_remembered = lru_cache(_GROUPS_REMEMBERED)(_partition_of)
