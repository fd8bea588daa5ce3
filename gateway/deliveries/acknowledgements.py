"""What a request acknowledges. No IO here."""

from collections.abc import Iterator
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple

from gateway.deliveries.held import Place

TYPES_MAX = 10_000
"""Types in the batches of one request that are counted, so that a request takes some ms at most. A leader
locks 10,000 records of a partition at most (`group.share.partition.max.record.locks`).
"""


class Type(IntEnum):
    """As in org.apache.kafka.clients.consumer.AcknowledgeType. GAP: the log has no record there."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Batch(NamedTuple):
    """Offsets of a partition, both included. There is one type for all of them, or one for each."""

    first: int
    last: int
    types: bytes

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """The offsets with the same type that follow each other: first, last, type."""
        if len(self.types) == 1:
            yield self.first, self.last, self.types[0]
            return
        at = self.first
        for kind, same in groupby(self.types):
            end = at + sum(1 for _ in same)
            yield at, end - 1, kind
            at = end


def batches_of(request: Any) -> tuple[dict[Place, list[Batch]], bool]:
    """The acknowledgements of a decoded request by partition, and whether there are more that are left out.
    Batches that every broker refuses are left out silently (KafkaApis.validateAcknowledgementBatches).
    """
    found: dict[Place, list[Batch]] = {}
    left = TYPES_MAX
    for topic in request.topics or ():
        topic_id = topic.topic_id.bytes
        for partition in topic.partitions:
            for batch in partition.acknowledgement_batches or ():
                left -= len(batch.acknowledge_types)
                if left < 0:
                    return found, True
                one = _batch(batch)
                if one is not None:
                    found.setdefault((topic_id, partition.partition_index), []).append(one)
    return found, False


def _batch(batch: Any) -> Batch | None:
    first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
    if last < first or not types or len(types) not in (1, last - first + 1):
        return None
    if min(types) < Type.GAP or max(types) > Type.RENEW:
        return None
    return Batch(first, last, bytes(types))
