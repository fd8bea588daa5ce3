"""How a broker assigns queues to clients that pop. Source: QueryAssignmentProcessor.allocate4Pop."""

from collections.abc import Sequence

from assignors.rocketmq.api import (
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
    NullPointerException,
    check,
)
from kafka_why.contract.rocketmq.queues import MessageQueue

ALL_QUEUES_OF_BROKER = -1
# Characters that are whitespace for Python but not for Java's Character.isWhitespace.
_NOT_WHITESPACE_IN_JAVA = "\x85\xa0\u2007\u202f"


def allocate_for_pop(
    strategy: AllocateMessageQueueStrategy,
    consumer_group: str,
    client_id: str | None,
    mq_all: Sequence[MessageQueue] | None,
    cid_all: Sequence[str] | None,
    pop_share_queue_num: int,
) -> list[MessageQueue]:
    """Return a client's queues: its own share and those of the `pop_share_queue_num` clients after it.

    If that number is not positive, or reaches all other clients, every client (in the list or not) gets all
    queues: one entry for each queue, with ALL_QUEUES_OF_BROKER as its number. If clients outnumber queues,
    each client gets one queue, in turns. Raises what the strategy raises, IllegalArgumentException, or
    NullPointerException for a list that is None and is read (an empty list is not refused here).
    """
    if mq_all is None or (cid_all is None and pop_share_queue_num > 0):
        raise NullPointerException
    if cid_all is None or pop_share_queue_num <= 0 or pop_share_queue_num >= len(cid_all) - 1:
        return [queue._replace(queue_id=ALL_QUEUES_OF_BROKER) for queue in mq_all]
    if len(cid_all) > len(mq_all):
        return _one_queue(client_id, mq_all, cid_all)
    sharers = [client_id]
    if client_id in cid_all:
        after = cid_all.index(client_id) + 1
        sharers += [cid_all[(after + i) % len(cid_all)] for i in range(pop_share_queue_num)]
    result: list[MessageQueue] = []
    for sharer in sharers:
        share = strategy.allocate(consumer_group, sharer, mq_all, cid_all)
        if share is None:
            raise NullPointerException
        result += share
    return result


def _one_queue(
    client_id: str | None, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
) -> list[MessageQueue]:
    if client_id and all(c.isspace() and c not in _NOT_WHITESPACE_IN_JAVA for c in client_id):
        raise IllegalArgumentException("currentCID is empty")
    own_cid, queues, client_ids = check(client_id, mq_all, cid_all)
    return [queues[client_ids.index(own_cid) % len(queues)]] if own_cid in client_ids else []
