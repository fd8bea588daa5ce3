"""The barrier: a wait until the groups, offsets, events and transactions topics have every change that was
answered before the call.

The coordinator's Spark query writes these topics, batch by batch. A response does not mean that its changes
are on the topics. It may come from a replica, which answers before the query's batch with the request. And a
batch writes its records in no particular order.

So the barrier sends three rounds of requests that change nothing and that only the query answers
(`waits_for_views`). A round is sent when the previous one is answered.

1. A request in each partition of the requests topic. It follows all answered requests of its partition, so it
   is in the batch of the last answered request or in a later batch. It also follows the clock records, by
   whose times a replica has fired deadlines. The query fires these deadlines one batch after it reads the
   clock records.
2. One request, in a later batch than the first round.
3. One request, in a still later batch.

A batch starts when all records of the previous batch are acknowledged. So the third answer shows that the
output of the batches with the answered requests and with the fired deadlines is on the topics.
"""

from itertools import count

from msgspec import UNSET, UnsetType

from clients.coordinator_client import CoordinatorClient, Header
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.partitioner import partition_of

BARRIER_VERSION = 5
"""The version of DescribeGroups whose response the barrier's requests get."""

# A request's group id is this prefix and a number that chooses the partition. The group need not exist.
_GROUP_ID_PREFIX = "__views_barrier"


def barrier_rounds(request_partitions: int) -> tuple[tuple[str, ...], ...]:
    """Return the group ids of each round's requests. A group id decides the partition of its request: the
    first round has a group in every partition, the other two rounds have one group.
    """
    first_round = tuple(_group_id_in(number, request_partitions) for number in range(request_partitions))
    return first_round, first_round[:1], first_round[:1]


def barrier_request(header: Header, *, lists_changed: bool | UnsetType = UNSET) -> DescribeGroup:
    """Return the barrier's request about a group. `header` names the group and BARRIER_VERSION.

    In the first round, `lists_changed` may be True. Then a replica may answer at once, with the groups of the
    request's partition whose views may be stale, and the caller can leave out the other rounds.
    """
    return DescribeGroup(**header, waits_for_views=True, lists_changed=lists_changed)


def wait_for_views(client: CoordinatorClient) -> None:
    """Run the barrier: return when the topics have every change that was answered before this call. Raises
    ClientError.
    """
    for group_ids in barrier_rounds(client.request_partitions):
        answers = [client.send(barrier_request(client.header(id_, BARRIER_VERSION))) for id_ in group_ids]
        for answer in answers:
            answer.result()  # wait for it; its content says nothing


def _group_id_in(partition: int, partitions: int) -> str:
    """Return a group id whose requests go to this partition of the requests topic."""
    candidates = (f"{_GROUP_ID_PREFIX}_{n}" for n in count())
    return next(group_id for group_id in candidates if partition_of(group_id, partitions) == partition)
