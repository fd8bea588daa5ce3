"""A wait until the groups, offsets, events and transactions topics have everything that was answered so far.

An early answer comes before the batch of the query that has its request, and a batch writes its records in no
order that a reader could rely on. So the barrier has three rounds of requests that change nothing and that
only the query answers (`waits_for_views`). In each partition the first round comes after all requests that
are answered, so its batches are the batches of these requests, or later ones. It also comes after the clock
records by which a replica has fired deadlines. The query fires these with the batch after the one that has
read them. The second round is written when the first is answered, so it is in a later batch, and the third in
a later one still. A batch begins when all records of the batch before are acknowledged. So they are on the
topics when the third round is answered.
"""

from collections.abc import Sequence
from itertools import count

from clients.coordinator_client import CoordinatorClient, Header
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.partitioner import partition_of

BARRIER_VERSION = 5
"""The version of DescribeGroups to which the requests correspond."""

# The group in the requests. It need not exist. A number follows that chooses the partition.
_GROUP_ID = "__views_barrier"


def barrier_rounds(request_partitions: int) -> tuple[tuple[str, ...], ...]:
    """The groups that each round asks about: one of each partition, then twice any."""
    first = tuple(_group_in(partition, request_partitions) for partition in range(request_partitions))
    return first, first[:1], first[:1]


def barrier_request(header: Header) -> DescribeGroup:
    """The request of the barrier with this header, which names one of the groups and BARRIER_VERSION."""
    return DescribeGroup(**header, waits_for_views=True)


def changed_request(header: Header) -> DescribeGroup:
    """The same of the first round, to which a replica may answer at once which groups have changed."""
    return DescribeGroup(**header, waits_for_views=True, lists_changed=True)


def wait_for_views(client: CoordinatorClient) -> None:
    """Wait until the topics have what was answered before this call. Raises ClientError."""
    for group_ids in barrier_rounds(client.request_partitions):
        _ask(client, group_ids)


def _ask(client: CoordinatorClient, group_ids: Sequence[str]) -> None:
    sent = [client.send(barrier_request(client.header(name, BARRIER_VERSION))) for name in group_ids]
    for answer in sent:
        answer.result()


def _group_in(partition: int, partitions: int) -> str:
    return next(name for n in count() if partition_of(name := f"{_GROUP_ID}_{n}", partitions) == partition)
