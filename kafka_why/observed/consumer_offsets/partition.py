"""The partition of `__consumer_offsets` that has a group: GroupCoordinator.partitionFor."""

_MIN = 1 << 31


def partition_of_offsets(group_id: str, partitions: int) -> int:
    """Return the partition of a topic with so many partitions. Java's String.hashCode decides."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFF_FFFF
    # Utils.abs: the least number, which has no absolute value, counts as 0.
    return (0 if code == _MIN else code if code < _MIN else (1 << 32) - code) % partitions
