"""No single record of any type costs a batch more than a bounded time and memory.

Each record goes through the work of a batch: decode, step, the deadlines that follow, and the encoding of
answers, history, offsets and state.
"""

import functools
import gc
import time
import tracemalloc
from typing import get_args

import pytest

from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.layout import DENSE_RECORD_BYTES
from kafka_why.partitioner import partition_of
from tests.harness.operator_call import OPERATOR, frame_of, spark_state
from tests.harness.worst_epochs_requests import all_worst
from tests.harness.worst_requests import Worst
from tests.spark.log import LAYOUT, T0, Record

# The figures of docs/tuning.md, with a margin for a busy machine.
MOST_S = 30
MOST_BYTES = 256 * 1024 * 1024

# In ordinary runs the records are smaller. Cost that grows with the square of the size still shows.
PART = 32
SMALL = all_worst(DENSE_RECORD_BYTES // PART)
# Memory that does not depend on the record: pandas, an assignment of group.max.partitions.
FIXED_BYTES = 24 * 1024 * 1024


@functools.cache
def large() -> dict[str, Worst]:
    """Return the cases of the greatest size. They take seconds to make, and 200 MB."""
    return all_worst(DENSE_RECORD_BYTES)


def cost(worst: Worst) -> tuple[float, int]:
    """Return the processor seconds and the peak bytes of Python for the record, after the records before."""
    key, partition = worst.group_id.encode(), partition_of(worst.group_id, LAYOUT.request_partitions)
    state = spark_state()
    before = [Record(partition, n, T0 + n, key, value) for n, value in enumerate(worst.before)]
    for _ in OPERATOR((0,), iter([frame_of(before)]), state):
        pass
    at_ms, row = T0 + len(before), tuple(state.get) if state.exists else None
    frames = [frame_of([Record(partition, len(before), at_ms, key, worst.value)])]

    gc.collect()
    began_s = time.thread_time()
    tracemalloc.start()  # traced code takes three times as long
    try:
        # The watermark lets the round of a JoinGroup complete in the same call.
        for _ in OPERATOR((0,), iter(frames), spark_state(row, watermark_ms=at_ms + 1)):
            pass
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return time.thread_time() - began_s, peak_bytes


@pytest.mark.parametrize("name", SMALL)
def test_worst_record_of_each_request_is_bounded(name: str) -> None:
    seconds, peak_bytes = cost(SMALL[name])
    assert peak_bytes < FIXED_BYTES + MOST_BYTES / PART
    assert seconds < MOST_S / 2


def test_every_request_type_has_a_worst_record_within_the_size_limit() -> None:
    tags = {str(type_.__struct_config__.tag) for type_ in get_args(AnyRequest)}
    assert {name.partition(",")[0] for name in large()} == tags
    for worst in large().values():
        assert all(len(value) <= DENSE_RECORD_BYTES for value in [*worst.before, worst.value])
    sizes = [max(map(len, [*worst.before, worst.value])) for worst in large().values()]
    assert sum(size > DENSE_RECORD_BYTES * 0.7 for size in sizes) > len(sizes) / 2
