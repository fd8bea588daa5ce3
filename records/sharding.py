"""Shards: groups that share one keyed state, because each state that a batch touches has a cost of its own.

`partition = murmur2(group id) mod P`, `shard = (partition, crc32(group id) mod k)`. k is a power of two, so
the slot of a pack (`kafka_why.contract.pack`) decides the shard of all its requests if k is at most
PACK_SLOTS. With a k of MAX_SHARDS practically every group has a keyed state of its own. The checkpoint pins P
and k.
"""

from zlib import crc32

from kafka_why.contract.pack import PACK_SLOTS
from kafka_why.numbers import parse_whole_number

DEFAULT_SHARDS = 64
MAX_SHARDS = 2**32


def check_shards(shards: int) -> None:
    """Raise ValueError unless this is a number of shards a partition may have."""
    if shards.bit_count() != 1 or not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"{shards} is not a power of two from 1 to {MAX_SHARDS}")


def parse_shards(text: str) -> int:
    """Parse a number of shards of a partition. Raises ValueError."""
    shards = parse_whole_number(text)
    check_shards(shards)
    return shards


def shard_of(group_id: str, partition: int, shards: int) -> int:
    """The number of a group's shard, over all partitions of requests. `shards` is k."""
    return partition * shards + crc32(group_id.encode()) % shards


def takes_packs(shards: int) -> bool:
    """Whether all requests of a pack are for the same shard."""
    return shards <= PACK_SLOTS
