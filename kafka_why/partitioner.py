"""The partitioner of requests by group id: Kafka's default for keys, as in Java and kafka-python.

librdkafka's default differs, so its producers must set `partitioner=murmur2_random`.
"""

from functools import lru_cache

from kafka.partitioner.default import murmur2

_GROUPS_CACHED = 10_000
# Clients choose the ids, and an id may have 32,767 bytes. So caches keep no ids of more characters than this.
CACHED_MAX_CHARACTERS = 256


def hash_of(group_id: str) -> int:
    """Return the hash of a group id for `partition_of`. It takes about 20 us."""
    return int(murmur2(group_id.encode()) & 0x7FFFFFFF)


def partition_of(group_id: str, partitions: int) -> int:
    """Return the group's partition of a topic with `partitions` partitions."""
    if len(group_id) > CACHED_MAX_CHARACTERS:
        return _partition_of(group_id, partitions)
    return _cached_partition_of(group_id, partitions)


def _partition_of(group_id: str, partitions: int) -> int:
    return hash_of(group_id) % partitions


_cached_partition_of = lru_cache(_GROUPS_CACHED)(_partition_of)
