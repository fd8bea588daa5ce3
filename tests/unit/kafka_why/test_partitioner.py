"""Groups are in the partitions that Kafka's own clients choose."""

import pytest
from kafka.partitioner.default import murmur2

from kafka_why import partitioner
from kafka_why.partitioner import partition_of


# From the tests of Kafka's Java client, org.apache.kafka.common.utils.UtilsTest.
@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_partition_hash_is_that_of_the_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
    assert partition_of(key.decode(), 7) == (hashed & 0x7FFFFFFF) % 7


def test_partitions_of_long_group_ids_are_not_cached() -> None:
    """Clients choose them: 10,000 ids of 32 kB would be much memory."""
    before = partitioner._cached_partition_of.cache_info().currsize
    assert partition_of("g" * 32_767, 7) == partition_of("g" * 32_767, 7)
    assert partitioner._cached_partition_of.cache_info().currsize == before
