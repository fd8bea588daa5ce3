"""Finds the faults that one or two polls of a RocketMQ group show, with clients' addresses and a remedy.

Each client computes its own share, so its answer shows which queues it holds. If a client does not answer,
the share that its strategy gives it counts. A fault that a rebalance can cause for a moment is reported only
if both polls show it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from kafka_why.contract.rocketmq.requests import (
    RETRY_GROUP_TOPIC_PREFIX,
    MessageModel,
    MessageQueue,
    averagely,
    averagely_by_circle,
    sort_client_ids,
    sort_queues,
)
from kafka_why.grouping import grouped
from kafka_why.rocketmq_group import (
    FILTERS_EFFECT,
    SUBSCRIPTIONS_EFFECT,
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
)
from kafka_why.why.rocketmq.polled.model import (
    ALL_QUEUES,
    ClientAnswer,
    GroupPoll,
    PollReport,
    QueueOffsets,
    Symptom,
    SymptomKind,
    most_serious_first,
    queues_text,
    subscriptions_text,
)
from kafka_why.wording import count, shortened

STANDS_MS = 8_000
"""An offset stands still if it did not move for this time. Clients store their offsets every 5 s."""
_FIRST_STORED_MS = 16_000
"""The age at which a client has stored its offsets. A client begins to store them 10 s after its start."""
AVERAGELY = "AllocateMessageQueueAveragely"
_STRATEGIES = {AVERAGELY: averagely, "AllocateMessageQueueAveragelyByCircle": averagely_by_circle}


def poll_report(poll: GroupPoll, before: GroupPoll | None) -> PollReport:
    """Return the report on a group from its newest poll and the earlier one, `before`, if any."""
    # Without an earlier poll, a fault that must be in both is reported if it is in this one.
    symptoms = [symptom for check in _CHECKS for symptom in check(poll, before or poll)]
    return PollReport(
        group_id=poll.group_id,
        symptoms=most_serious_first(symptoms),
        poll=poll,
        shares=shares(poll),
        polled_before_ms=None if before is None else before.at_ms,
    )


def earlier_poll(polls: Sequence[GroupPoll]) -> GroupPoll | None:
    """Return the latest poll that is at least STANDS_MS older than the last one, or None."""
    earlier = [poll for poll in polls if polls[-1].at_ms - poll.at_ms >= STANDS_MS]
    return earlier[-1] if earlier else None


def shares(poll: GroupPoll) -> dict[str, list[MessageQueue]]:
    """Return the queues that each client's strategy gives it, without retry topics.

    The strategy divides the queues among the client ids in the list of the broker with the most connections.
    Clients that broadcast, or whose strategy is not in _STRATEGIES, are omitted. The result is empty if the
    clients do not divide the queues.
    """
    views = [view for view in poll.answered_views if view.connections]
    if not views or not poll.divides_queues:
        return {}
    longest_view = max(views, key=lambda view: len(view.connections))
    ids = sort_client_ids(connection.client_id for connection in longest_view.connections)
    answers = {client.client_id: client for client in poll.answers}
    queues_by_topic = {
        topic: sort_queues(queue for queue in poll.queues if queue.topic == topic) for topic in poll.topics
    }
    share_by_client = {}
    for client_id in dict.fromkeys(ids):
        answer = answers.get(client_id)
        strategy = _STRATEGIES.get(_strategy(poll, answer))
        if strategy is not None and (answer is None or answer.message_model != MessageModel.BROADCASTING):
            topics = queues_by_topic.keys() if answer is None else answer.subscriptions.keys()
            share_by_client[client_id] = [
                queue
                for topic in topics
                if queues_by_topic[topic] and not topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
                for queue in strategy(queues_by_topic[topic], ids, client_id)
            ]
    return share_by_client


def _strategy(poll: GroupPoll, answer: ClientAnswer | None) -> str:
    """Return the client's strategy. If unknown, it is that of all others, or else RocketMQ's default."""
    if answer is not None and answer.strategy is not None:
        return answer.strategy
    others = {client.strategy for client in poll.answers if client.strategy is not None}
    return others.pop() if len(others) == 1 else AVERAGELY


def _find_duplicates(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    """Yield the client ids that several clients have."""
    if poll.is_broadcasting:
        return  # each client reads all queues
    for client_id, (broker, addresses) in poll.duplicates().items():
        answers = [client for client in poll.answers if client.client_id == client_id]
        held = {queue for client in answers for queue in client.queues}
        held_text = f" ({queues_text(held)})" if held else ""
        all_answered = len(answers) == len(addresses)
        yield Symptom(
            kind=SymptomKind.DUPLICATE,
            reason=f"{client_id} is on {len(addresses)} connections to {broker}: {' and '.join(addresses)}. "
            f"It is {len(addresses)} times in the list of client ids: each of its clients takes the share of "
            f"the id's first entry{held_text}, and nobody reads the shares of its other entries",
            to_do=TO_DO_DUPLICATE,
            since_ms=_all_since_ms([[client] for client in answers]) if all_answered else None,
            client_ids=[client_id],
            queues=sorted(held),
        )


def _subscriptions_of(client: ClientAnswer) -> str:
    return subscriptions_text(client.subscriptions)


def _strategy_of(client: ClientAnswer) -> str | None:
    return client.strategy


# Each kind of difference: its symptom, the value that differs between clients, the effect, and the remedy.
_DIFFERENCES: tuple[tuple[SymptomKind, Callable[[ClientAnswer], str | None], str, str], ...] = (
    (
        SymptomKind.SUBSCRIPTIONS,
        _subscriptions_of,
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
        _strategy_of,
        "Their shares overlap, or leave queues unread",
        "give all clients of the group the same allocateMessageQueueStrategy",
    ),
)


def _find_differences(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    """Yield the differences between the clients that answered."""
    for kind, key, effect, to_do in _DIFFERENCES:
        clients_by_value = _grouped_by(poll.answers, key)
        if len(clients_by_value) < 2 or (kind is SymptomKind.STRATEGIES and not poll.divides_queues):
            continue
        if kind is SymptomKind.SUBSCRIPTIONS and not poll.divides_queues:
            effect = FILTERS_EFFECT
        values = "; ".join(
            f"{value}: {_clients_text(poll, clients)}" for value, clients in clients_by_value.items()
        )
        yield Symptom(
            kind=kind,
            reason=f"{values}. {effect}",
            to_do=to_do,
            since_ms=_all_since_ms(clients_by_value.values()),
            client_ids=[client.client_id for clients in clients_by_value.values() for client in clients],
        )


def _find_queues_without_reader(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    """Yield one symptom about all queues that no client reads in both polls."""
    unread = _unread(poll) & _unread(before)
    if unread and poll.client_ids:
        waiting = sum(one.behind for one in poll.offsets if one.queue in unread)
        keys = (_subscriptions_of, _strategy_of)
        # Other symptoms then have the reason why a queue has no reader.
        is_explained = poll.duplicates() or any(len(_grouped_by(poll.answers, key)) > 1 for key in keys)
        owners = [
            poll.client_text(client_id) for client_id, share in shares(poll).items() if unread & {*share}
        ]
        remedy = f"restart {shortened(owners)}, whose share it is" if owners else "look at their strategy"
        wait_first = (
            "wait 60 s: clients rebalance every 20 s, see new queues after 30 s, and locks of clients "
            f"that are gone last 60 s. If it stays so, {remedy}"
        )
        yield Symptom(
            kind=SymptomKind.NO_READER,
            reason=f"nobody reads {queues_text(unread)}; {count(waiting, 'message')} wait there",
            to_do="the fault above is the cause" if is_explained else wait_first,
            queues=sorted(unread),
        )


def _unread(poll: GroupPoll) -> Set[MessageQueue]:
    """Return the queues that no client reads, without retry topics.

    The result is empty if the share of a client that gave no answer is unknown.
    """
    share_by_client = shares(poll)
    read = set(_readers(poll))
    # A client that gave no answer is assumed to read its share.
    for client_id in set(poll.client_ids) - {client.client_id for client in poll.answers}:
        if client_id not in share_by_client:
            return set()
        read.update(share_by_client[client_id])
    return {
        queue
        for queue in poll.queues
        if queue not in read and not queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
    }


def _find_queues_with_several_readers(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    """Yield the queues that the clients of a group hold at the same time in both polls."""
    if MessageModel.BROADCASTING in poll.message_models:
        return
    readers, readers_before = _readers(poll), _readers(before)
    # In pop mode several clients share a queue.
    queues_by_clients = grouped(
        (_client_ids(clients), queue)
        for queue, clients in readers.items()
        if len(clients) > 1 and len(readers_before.get(queue, [])) > 1 and not clients[0].pops
    )
    for client_ids, queues in queues_by_clients.items():
        clients = readers[queues[0]]
        yield Symptom(
            kind=SymptomKind.TWO_READERS,
            reason=f"{queues_text(queues)}: read by {_clients_text(poll, clients)} at once, so each message "
            "is consumed several times",
            to_do="see that all clients have the same strategy, model and list of clients",
            since_ms=_all_since_ms([[client] for client in clients]),
            client_ids=list(dict.fromkeys(client_ids)),
            queues=queues,
        )


def _readers(poll: GroupPoll) -> dict[MessageQueue, list[ClientAnswer]]:
    """Return the clients that hold each queue, by their answers."""
    broker_queues = grouped(((queue.topic, queue.broker_name), queue) for queue in poll.queues)
    readers: dict[MessageQueue, list[ClientAnswer]] = {}
    for client in poll.answers:
        for topic, broker, queue_id in (one.queue for one in client.held):
            # A client in pop mode may hold all queues of a broker.
            queues = broker_queues.get((topic, broker), []) if queue_id == ALL_QUEUES else []
            for queue in queues or [MessageQueue(topic, broker, queue_id)]:
                readers.setdefault(queue, []).append(client)
    return readers


def _find_silent_clients(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    share_by_client = shares(poll)
    for client_id in dict.fromkeys(client.client_id for client in poll.clients if client.is_silent):
        share = f": {queues_text(share_by_client[client_id])}" if share_by_client.get(client_id) else ""
        yield Symptom(
            kind=SymptomKind.SILENT,
            reason=f"{poll.client_text(client_id)} did not answer the broker within 10 s. If it sends no "
            f"heartbeats either, the broker removes it after 120 s; until then it keeps its share{share}",
            to_do="look at its process, its machine and its network; gRPC clients of a Proxy never answer",
            client_ids=[client_id],
            queues=share_by_client.get(client_id, []),
        )


def _find_absent_clients(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    """Yield the clients that a broker lacks in both polls although another broker has them."""
    if not poll.divides_queues:
        return
    absent_before = _absent(before)
    absent = {broker: ids & absent_before.get(broker, set()) for broker, ids in _absent(poll).items()}
    brokers_by_clients = grouped((tuple(sorted(ids)), broker) for broker, ids in absent.items() if ids)
    for client_ids, brokers in brokers_by_clients.items():
        clients = shortened([poll.client_text(client_id) for client_id in client_ids])
        yield Symptom(
            kind=SymptomKind.VIEWS,
            reason=f"missing at {shortened(brokers)}: {clients}. A client asks any one broker for the list "
            "of clients, so clients divide the queues differently",
            to_do="clients register within 30 s of a broker's start; if it lasts, check the network "
            f"between the clients and {shortened(brokers)}, and that no topic is missing there",
            client_ids=list(client_ids),
        )


def _absent(poll: GroupPoll) -> dict[str, set[str]]:
    """Return the client ids that each broker lacks although another broker has them."""
    all_ids = set(poll.client_ids)
    return {
        view.broker: missing
        for view in poll.relevant_views
        if view.error is None and (missing := all_ids - {c.client_id for c in view.connections})
    }


def _find_standing_offsets(poll: GroupPoll, before: GroupPoll) -> Iterator[Symptom]:
    """Yield the offsets that stand still although the same clients read the queue in both polls."""
    is_too_soon = poll.at_ms - before.at_ms < STANDS_MS
    if is_too_soon or not poll.client_ids or MessageModel.BROADCASTING in poll.message_models:
        return
    readers, readers_before = _readers(poll), _readers(before)
    offsets_before = {one.queue: one for one in before.offsets}
    standing_by_clients: dict[tuple[str, ...], list[QueueOffsets]] = {}
    for one in poll.offsets:
        earlier = offsets_before.get(one.queue)
        if earlier is None or not earlier.behind or earlier.stored != one.stored:
            continue
        clients = readers.get(one.queue, [])
        is_young = any(poll.at_ms - (client.started_ms or 0) < _FIRST_STORED_MS for client in clients)
        if _client_ids(clients) == _client_ids(readers_before.get(one.queue, [])) and not is_young:
            standing_by_clients.setdefault(_client_ids(clients), []).append(one)
    for ids, offsets in standing_by_clients.items():
        queues = [one.queue for one in offsets]
        clients = readers.get(queues[0], [])
        held = [one for client in clients for one in client.held if one.queue in queues]
        waiting = count(sum(one.behind for one in offsets), "message")
        added = sum(one.end - offsets_before[one.queue].end for one in offsets)
        reason = f"{queues_text(queues)}: no offset moved between two polls while {waiting} waited"
        reason += f", {added} more than before" if added > 0 else ""
        reason += (
            f"; read by {_clients_text(poll, clients)}" if clients else "; read by no client that answered"
        )
        reason += f", with {sum(one.cached for one in held)} of them fetched" if held else ""
        yield Symptom(
            kind=SymptomKind.STANDING,
            reason=reason,
            to_do="see in the log and the threads of these clients what their listeners wait for"
            if clients
            else "see the faults above, and the clients that gave no answer",
            since_ms=max((one.consumed_ms or 0 for one in held), default=0) or None,
            client_ids=list(dict.fromkeys(ids)),
            queues=queues,
        )


def _client_ids(clients: Iterable[ClientAnswer]) -> tuple[str, ...]:
    return tuple(client.client_id for client in clients)


def _find_offline_group(poll: GroupPoll, _: GroupPoll) -> Iterator[Symptom]:
    if not poll.client_ids and poll.answered_views:
        waiting = sum(one.behind for one in poll.offsets)
        yield Symptom(
            kind=SymptomKind.OFFLINE,
            reason="no broker that answered has a connection of this group; "
            f"{count(waiting, 'message')} wait for it",
            to_do="start a consumer, or see that it reaches the name server and the brokers",
        )


# Each gets the newest poll, and the earlier one or the newest again.
_CHECKS: tuple[Callable[[GroupPoll, GroupPoll], Iterator[Symptom]], ...] = (
    _find_duplicates,
    _find_differences,
    _find_queues_without_reader,
    _find_queues_with_several_readers,
    _find_silent_clients,
    _find_absent_clients,
    _find_standing_offsets,
    _find_offline_group,
)


def _grouped_by(
    clients: Iterable[ClientAnswer], key: Callable[[ClientAnswer], str | None]
) -> dict[str, list[ClientAnswer]]:
    """Group the clients by `key`, without those whose key is None."""
    return grouped((value, client) for client in clients if (value := key(client)) is not None)


def _clients_text(poll: GroupPoll, clients: Iterable[ClientAnswer]) -> str:
    return shortened(list(dict.fromkeys(poll.client_text(client.client_id) for client in clients)))


def _all_since_ms(groups: Iterable[Sequence[ClientAnswer]]) -> int | None:
    """Return the time since which each of these groups has had a client, or None if a start is unknown."""
    first_ms = []
    for clients in groups:
        started_ms = [client.started_ms for client in clients if client.started_ms is not None]
        if len(started_ms) < len(clients):
            return None
        first_ms.append(min(started_ms))
    return max(first_ms, default=None)
