"""The faults that one or two polls of a RocketMQ group show, each with the clients' addresses and a remedy.

A client computes its own share, so whoever holds a queue is known from the clients' answers. For a client
without an answer the share by its strategy counts. What a rebalance makes for a moment is reported only if
both polls show it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from kafka_why.contract.rocketmq.queues import RETRY_GROUP_TOPIC_PREFIX, MessageQueue
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.contract.rocketmq.shares import averagely, averagely_by_circle, sort_client_ids, sort_queues
from kafka_why.rocketmq_group import SUBSCRIPTIONS_EFFECT, TO_DO_DUPLICATE, TO_DO_SUBSCRIPTIONS
from kafka_why.why.rocketmq.polled.model import (
    ALL_QUEUES,
    ClientAnswer,
    GroupPoll,
    PollReport,
    QueueOffsets,
    Symptom,
    SymptomKind,
    queues_text,
    subscription_text,
)
from kafka_why.why.wording import count, shortened

STANDS_MS = 8_000
"""An offset that did not move for so long stands still: clients store theirs every 5 s."""
AVERAGELY = "AllocateMessageQueueAveragely"
_STRATEGIES = {AVERAGELY: averagely, "AllocateMessageQueueAveragelyByCircle": averagely_by_circle}


def poll_report(poll: GroupPoll, before: GroupPoll | None) -> PollReport:
    """Return the report on a group by its newest poll, and an earlier one if there is one."""
    found = [symptom for check in _CHECKS for symptom in check(poll, before or poll)]
    order = list(SymptomKind)
    return PollReport(
        group_id=poll.group_id,
        symptoms=sorted(found, key=lambda symptom: order.index(symptom.kind)),
        poll=poll,
        shares=shares(poll),
        polled_before_ms=None if before is None else before.at_ms,
    )


def earlier_poll(polls: Sequence[GroupPoll]) -> GroupPoll | None:
    """Return the poll to compare the last of these with, if one is early enough for offsets to have moved."""
    earlier = [poll for poll in polls if polls[-1].at_ms - poll.at_ms >= STANDS_MS]
    return earlier[-1] if earlier else None


def shares(poll: GroupPoll) -> dict[str, list[MessageQueue]]:
    """Return each client's share of the topics that it subscribes to, without the topic for retries, as its
    strategy divides them among the ids of the broker that has most of them.

    A client whose strategy is unknown counts as one of RocketMQ's default strategy. Clients of other
    strategies than the usual two are missing, as are those that broadcast, and all clients of a group that
    pops.
    """
    views = [view for view in poll.answered if view.connections]
    if not views or poll.is_broadcasting or any(client.pops for client in poll.reports):
        return {}
    fullest = max(views, key=lambda view: len(view.connections))
    ids = sort_client_ids(connection.client_id for connection in fullest.connections)
    answers = {client.client_id: client for client in poll.reports}
    every_topic, found = poll.topics, {}
    queues = {
        topic: sort_queues(queue for queue in poll.queues if queue.topic == topic) for topic in every_topic
    }
    for client_id in dict.fromkeys(ids):
        answer = answers.get(client_id)
        strategy = _STRATEGIES.get(_strategy(poll, answer))
        if strategy is not None and (answer is None or answer.message_model != MessageModel.BROADCASTING):
            topics = every_topic if answer is None else answer.subscriptions
            found[client_id] = [
                queue
                for topic in topics
                if queues[topic] and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
                for queue in strategy(queues[topic], ids, client_id)
            ]
    return found


def _strategy(poll: GroupPoll, answer: ClientAnswer | None) -> str:
    """Return the client's strategy, else the one that all other clients have, else RocketMQ's default."""
    if answer is not None and answer.strategy is not None:
        return answer.strategy
    others = {client.strategy for client in poll.reports if client.strategy is not None}
    return others.pop() if len(others) == 1 else AVERAGELY


def _duplicates(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    if poll.is_broadcasting:
        return  # each client reads all queues
    for client_id, (broker, addresses) in poll.duplicates().items():
        known = [client for client in poll.reports if client.client_id == client_id]
        held = {queue for client in known for queue in client.queues}
        taken = f" ({queues_text(held)})" if held else ""
        yield Symptom(
            kind=SymptomKind.DUPLICATE,
            reason=f"{client_id} is on {len(addresses)} connections to {broker}: {' and '.join(addresses)}. "
            f"It stands {len(addresses)} times among the group's ids: each of its clients takes the share of "
            f"its first place{taken}, and the shares of its other places are read by nobody",
            to_do=TO_DO_DUPLICATE,
            since_ms=_all_since_ms([[client] for client in known]) if len(known) == len(addresses) else None,
            client_ids=[client_id],
            queues=sorted(held),
        )


def _subscribed(client: ClientAnswer) -> str:
    return subscription_text(client.subscriptions)


_DIFFERENCES: tuple[tuple[SymptomKind, Callable[[ClientAnswer], str | None], str, str], ...] = (
    (
        SymptomKind.SUBSCRIPTIONS,
        _subscribed,
        SUBSCRIPTIONS_EFFECT,
        TO_DO_SUBSCRIPTIONS,
    ),
    (
        SymptomKind.MODELS,
        lambda client: client.message_model,
        "The clients that broadcast read all queues, the others divide them among all clients",
        "give the clients of each message model a group of their own",
    ),
    (
        SymptomKind.STRATEGIES,
        lambda client: client.strategy,
        "Their shares overlap, or leave queues unread",
        "give all clients of the group the same allocateMessageQueueStrategy",
    ),
)


def _differences(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    for kind, key, effect, to_do in _DIFFERENCES:
        found = _grouped(poll.reports, key)
        if len(found) > 1:
            each = "; ".join(f"{value}: {_names(poll, some)}" for value, some in found.items())
            yield Symptom(
                kind=kind,
                reason=f"{each}. {effect}",
                to_do=to_do,
                since_ms=_all_since_ms(found.values()),
                client_ids=[client.client_id for some in found.values() for client in some],
            )


def _without_reader(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    unread = _unread(poll) & _unread(before)
    if unread and poll.client_ids:
        waiting = sum(one.behind for one in poll.offsets if one.queue in unread)
        is_explained = poll.duplicates() or len(_grouped(poll.reports, _subscribed)) > 1
        yield Symptom(
            kind=SymptomKind.NO_READER,
            reason=f"nobody reads {queues_text(unread)}; {count(waiting, 'message')} wait there",
            to_do="the fault above is the cause"
            if is_explained
            else "see that all clients have the same strategy and list of clients; restart them else",
            queues=sorted(unread),
        )


def _unread(poll: GroupPoll) -> Set[MessageQueue]:
    """Return the queues that nobody reads, except those for retries; none if that is not known."""
    computed = shares(poll)
    read = _readers(poll)
    for client_id in set(poll.client_ids) - {client.client_id for client in poll.reports}:
        if client_id not in computed:
            return set()
        read |= {queue: [] for queue in computed[client_id]}
    of_brokers = {(q.topic, q.broker_name) for q in read if q.queue_id == ALL_QUEUES}
    return {
        queue
        for queue in poll.queues
        if queue not in read
        and (queue.topic, queue.broker_name) not in of_brokers
        and not queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    }


def _several_readers(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    if MessageModel.BROADCASTING in poll.message_models:
        return
    now, then = _readers(poll), _readers(before)
    by_clients: dict[tuple[str, ...], list[MessageQueue]] = {}
    for queue, clients in now.items():
        if len(clients) > 1 and len(then.get(queue, [])) > 1 and not clients[0].pops:
            by_clients.setdefault(tuple(client.client_id for client in clients), []).append(queue)
    for client_ids, queues in by_clients.items():
        clients = now[queues[0]]
        yield Symptom(
            kind=SymptomKind.TWO_READERS,
            reason=f"{queues_text(queues)}: read by {_names(poll, clients)} at once, so each message is "
            "consumed several times",
            to_do="see that all clients have the same strategy, model and list of clients",
            since_ms=_all_since_ms([[client] for client in clients]),
            client_ids=list(dict.fromkeys(client_ids)),
            queues=queues,
        )


def _readers(poll: GroupPoll) -> dict[MessageQueue, list[ClientAnswer]]:
    found: dict[MessageQueue, list[ClientAnswer]] = {}
    for client in poll.reports:
        for one in client.held:
            found.setdefault(one.queue, []).append(client)
    return found


def _silent(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    computed = shares(poll)
    for client_id in dict.fromkeys(client.client_id for client in poll.clients if client.is_silent):
        keeps = f": {queues_text(computed[client_id])}" if computed.get(client_id) else ""
        yield Symptom(
            kind=SymptomKind.SILENT,
            reason=f"{poll.named(client_id)} did not answer the broker in time: it hangs, is suspended or "
            f"cut off. The broker drops it after 120 s without a heartbeat; until then it keeps its share"
            f"{keeps}",
            to_do="look at its process and its machine; restart it",
            client_ids=[client_id],
            queues=computed.get(client_id, []),
        )


def _views(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    absent, earlier = _absent(poll), _absent(before)
    for broker, missing in absent.items():
        client_ids = sorted(missing & earlier.get(broker, set()))
        if client_ids:
            named = shortened([poll.named(client_id) for client_id in client_ids])
            yield Symptom(
                kind=SymptomKind.VIEWS,
                reason=f"{broker} does not have {named}. A client asks any one broker for the list of "
                "clients, so clients divide the queues differently",
                to_do="clients register within 30 s of a broker's start; if it lasts, look at their way to "
                f"{broker}, and whether it has all topics",
                client_ids=client_ids,
            )


def _absent(poll: GroupPoll) -> dict[str, set[str]]:
    """Return for each broker the client ids that another one has and it has not."""
    every = set(poll.client_ids)
    return {
        view.broker: missing
        for view in poll.answered
        if (missing := every - {connection.client_id for connection in view.connections})
    }


def _standing(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    if poll.at_ms - before.at_ms < STANDS_MS or not poll.client_ids:
        return
    then, readers = {one.queue: one for one in before.offsets}, _readers(poll)
    by_reader: dict[str, list[QueueOffsets]] = {}
    for one in poll.offsets:
        earlier = then.get(one.queue)
        if earlier is not None and earlier.behind and earlier.stored == one.stored:
            reader = next((client.client_id for client in readers.get(one.queue, ())), "")
            by_reader.setdefault(reader, []).append(one)
    held = {one.queue: one for client in poll.reports for one in client.held}
    for reader, offsets in by_reader.items():
        queues = [one.queue for one in offsets]
        waiting = count(sum(one.behind for one in offsets), "message")
        came = sum(one.end - then[one.queue].end for one in offsets)
        reason = f"{queues_text(queues)}: no offset moved between two polls while {waiting} waited"
        reason += f", {came} more than before" if came > 0 else ""
        if reader:
            fetched = sum(held[queue].cached for queue in queues)
            reason += f"; the reader {poll.named(reader)} has fetched {fetched} of them"
        yield Symptom(
            kind=SymptomKind.STANDING,
            reason=reason,
            to_do="see in that client's log and threads what its listener waits for"
            if reader
            else "start a reader, or see above why there is none",
            since_ms=max((held[queue].consumed_ms or 0 for queue in queues if reader), default=0) or None,
            client_ids=[reader] if reader else [],
            queues=queues,
        )


def _offline(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    if not poll.client_ids and poll.answered:
        waiting = sum(one.behind for one in poll.offsets)
        yield Symptom(
            kind=SymptomKind.OFFLINE,
            reason=f"no broker has a connection of this group; {count(waiting, 'message')} wait for it",
            to_do="start a consumer, or see that it reaches the name server and the brokers",
        )


_CHECKS: tuple[Callable[[GroupPoll, GroupPoll], Iterator[Symptom]], ...] = (
    _duplicates,
    _differences,
    _without_reader,
    _several_readers,
    _silent,
    _views,
    _standing,
    _offline,
)


def _grouped(
    clients: Iterable[ClientAnswer], key: Callable[[ClientAnswer], str | None]
) -> dict[str, list[ClientAnswer]]:
    """Return the clients by what they have; those of which it is unknown are left out."""
    found: dict[str, list[ClientAnswer]] = {}
    for client in clients:
        if (value := key(client)) is not None:
            found.setdefault(value, []).append(client)
    return found


def _names(poll: GroupPoll, clients: Iterable[ClientAnswer]) -> str:
    return shortened(list(dict.fromkeys(poll.named(client.client_id) for client in clients)))


def _all_since_ms(groups: Iterable[Sequence[ClientAnswer]]) -> int | None:
    """Return when the last of these groups of clients got its first one, None if that is unknown."""
    first_ms = []
    for clients in groups:
        started = [client.started_ms for client in clients if client.started_ms is not None]
        if len(started) < len(clients):
            return None
        first_ms.append(min(started))
    return max(first_ms, default=None)
