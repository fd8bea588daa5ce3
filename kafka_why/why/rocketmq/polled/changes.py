"""Formats a report on polls of a RocketMQ group as text: first the faults, then the queues of each client.
Also finds the changes between two polls.
"""

from collections import Counter
from collections.abc import Iterator, Set

from msgspec import Struct

from kafka_why.contract.rocketmq.requests import MessageQueue
from kafka_why.rocketmq_group import subscription_text
from kafka_why.why.live_sources import time_of_day
from kafka_why.why.rocketmq.polled.model import (
    GroupPoll,
    PollReport,
    Symptom,
    queues_text,
    subscriptions_text,
)
from kafka_why.wording import (
    INDENT,
    Clock,
    Lines,
    VisibleText,
    columns,
    count,
    listing,
    shortened,
    visible_text,
)


class PolledChange(Struct, frozen=True):
    """A change that the poll at `at_ms` is the first to show."""

    at_ms: int
    group_id: str
    type: str
    reason: str
    client_id: str | None = None  # None if it is not about a single client


def changes(before: GroupPoll, poll: GroupPoll) -> Iterator[PolledChange]:
    """Yield the connections that came and went, then the queues and subscriptions that changed."""

    def change(kind: str, client_id: str, reason: str) -> PolledChange:
        return PolledChange(poll.at_ms, poll.group_id, kind, reason, client_id)

    # A connection to a broker that did not answer both polls may be unchanged.
    brokers = {view.broker for view in before.answered_views} & {view.broker for view in poll.answered_views}
    old, new = _connections_of_clients(before, brokers), _connections_of_clients(poll, brokers)
    for client_id in sorted({name for name, _ in old ^ new}):
        opened = sorted(connection for name, connection in new - old if name == client_id)
        closed = sorted(connection for name, connection in old - new if name == client_id)
        if opened:
            yield change("ClientConnected", client_id, f"came on {shortened(opened)}")
        if closed:
            rest = "; it is on no other connection" if _is_known_absent(client_id, poll, before) else ""
            yield change("ClientGone", client_id, f"is no longer on {shortened(closed)}{rest}")
    held_before, held_now = _held_queues(before), _held_queues(poll)
    for client_id in sorted(held_before.keys() | held_now.keys()):
        # The queues of a client that gave no answer are unknown, unless it was absent and so had none.
        is_known_now = client_id in held_now or _is_known_absent(client_id, poll, before)
        was_known = client_id in held_before or _is_known_absent(client_id, before, poll)
        old_queues = held_before.get(client_id, Counter())
        new_queues = held_now.get(client_id, Counter())
        moves = {"took": new_queues - old_queues, "gave up": old_queues - new_queues}
        texts = [f"{verb} {queues_text(queues)}" for verb, queues in moves.items() if queues]
        if texts and is_known_now and was_known:
            yield change("QueuesMoved", client_id, ", ".join(texts))
    subscriptions_before = {client.client_id: client.subscriptions for client in before.answers}
    for client in poll.answers:
        if subscriptions_before.get(client.client_id, client.subscriptions) != client.subscriptions:
            text = subscriptions_text(client.subscriptions)
            yield change("SubscriptionChanged", client.client_id, f"subscribes to {text}")


def _connections_of_clients(poll: GroupPoll, brokers: Set[str]) -> set[tuple[str, str]]:
    """Return the client id and a text about each connection to these brokers."""
    return {
        (c.client_id, f"{c.address} at {view.broker}")
        for view in poll.views
        if view.broker in brokers
        for c in view.connections
    }


def _is_known_absent(client_id: str, poll: GroupPoll, other: GroupPoll) -> bool:
    """Return True if the client is certainly absent in `poll`.

    No broker lists it, and all brokers that listed it in the poll `other` answered.
    """
    answered = {view.broker for view in poll.answered_views}
    return client_id not in poll.client_ids and all(
        view.broker in answered
        for view in other.views
        if any(connection.client_id == client_id for connection in view.connections)
    )


def _held_queues(poll: GroupPoll) -> dict[str, Counter[MessageQueue]]:
    """Return the queues of each client id that answered."""
    held: dict[str, Counter[MessageQueue]] = {}
    for client in poll.answers:
        # A queue counts twice if two clients with the same id hold it.
        held.setdefault(client.client_id, Counter()).update(client.queues)
    return held


def symptom_changes(
    before: list[Symptom], symptoms: list[Symptom], group_id: str, at_ms: int
) -> Iterator[PolledChange]:
    """Yield the faults that began, then the faults that are over."""
    old = {(one.kind, *one.client_ids): one for one in before}
    new = {(one.kind, *one.client_ids): one for one in symptoms}
    for key in new.keys() - old.keys():
        yield PolledChange(
            at_ms, group_id, "FaultBegan", f"{new[key].kind}: {new[key].reason}. To do: {new[key].to_do}"
        )
    for key in old.keys() - new.keys():
        yield PolledChange(at_ms, group_id, "FaultOver", f"{old[key].kind}: {old[key].reason}")


def change_line(change: PolledChange) -> str:
    """Return a change as a line of text."""
    client = f" [{change.client_id}]" if change.client_id else ""
    return f"{time_of_day(change.at_ms)}  {change.group_id}  {change.type}{client}: {change.reason}"


MAX_CLIENTS, MAX_TOPICS = 50, 20
"""The maximum numbers of clients and of topics in the text."""


def poll_report_text(report: PollReport, clock: Clock) -> VisibleText:
    """Return the summary, the faults with their remedies, and the clients with their queues."""
    blocks: list[str] = [visible_text([_headline(report), *columns(_summary(report, clock))])]
    for number, symptom in enumerate(report.symptoms, 1):
        lines = columns(_symptom_lines(symptom, clock))
        blocks.append(visible_text([f"#{number}  {symptom.kind}", *(INDENT + line for line in lines)]))
    if report.poll.client_ids:
        blocks.append(visible_text(columns(_holdings(report))))
    return visible_text(blocks, "\n\n")


def _headline(report: PollReport) -> str:
    kinds = list(dict.fromkeys(str(symptom.kind) for symptom in report.symptoms))
    if kinds:
        return f"Group {report.group_id} of RocketMQ has {', '.join(kinds)}"
    clients = count(len(report.poll.client_ids), "client")
    return f"Group {report.group_id} of RocketMQ has {clients}, and no fault that polls show"


def _summary(report: PollReport, clock: Clock) -> Lines:
    poll, before_ms = report.poll, report.polled_before_ms
    times = "once, at" if before_ms is None else f"at {clock.time(before_ms)} and"
    yield "Polled", f"{times} {clock.time(poll.at_ms)} {clock.zone(poll.at_ms)}"
    if poll.client_ids:
        yield "Clients", _clients_text(poll)
        yield "Versions", _versions(poll)
    topics = [_topic_text(topic, expressions, poll) for topic, expressions in poll.topics.items()]
    yield from listing("Topics", topics[:MAX_TOPICS], len(topics) - MAX_TOPICS, "topic")
    brokers = [
        f"{view.broker} {view.error or count(len(view.connections), 'connection')}"
        for view in poll.relevant_views
    ]
    yield "Brokers", shortened(brokers)
    yield from listing("Note", poll.notes)


def _topic_text(topic: str, expressions: list[str], poll: GroupPoll) -> str:
    """Return a topic with its filters, the number of its queues, and how far the group is behind in them."""
    text = subscription_text(topic, " and ".join(expressions))
    queues = count(sum(queue.topic == topic for queue in poll.queues), "queue")
    offsets = [one for one in poll.offsets if one.queue.topic == topic and one.stored is not None]
    if not offsets:
        return f"{text}: {queues}, no stored offset"
    lagging = sorted((one for one in offsets if one.behind), key=lambda one: (-one.behind, one.queue))
    by_queue = [f"{one.queue.queue_id} of {one.queue.broker_name}: {one.behind}" for one in lagging]
    where = f" ({shortened(by_queue)})" if lagging else ""
    return f"{text}: {queues}, {count(sum(one.behind for one in lagging), 'message')} behind{where}"


def _clients_text(poll: GroupPoll) -> str:
    duplicates = poll.duplicates()
    ids = [f"{c} {len(duplicates[c][1])} times" if c in duplicates else c for c in poll.client_ids]
    consume_types = {view.consume_type for view in poll.answered_views if view.consume_type}
    return f"{shortened(ids)}; {', '.join(sorted(poll.message_models | consume_types))}"


def _versions(poll: GroupPoll) -> str:
    """Return the languages and versions of the clients. If there are several, each has its clients.

    Brokers report a version as a number. Its name is known if a client of that version has answered.
    """
    reported = {client.client_id: client.version for client in poll.answers if client.version}
    connections = [connection for view in poll.views for connection in view.connections]
    names = {(c.language, c.version): reported[c.client_id] for c in connections if c.client_id in reported}
    versions = {
        c.client_id: f"{c.language} {names.get((c.language, c.version), c.version)}" for c in connections
    }
    counts = Counter(versions.values()).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(
        f"{text} ({shortened([c for c in versions if versions[c] == text])})" for text, _ in counts
    )


def _symptom_lines(symptom: Symptom, clock: Clock) -> Lines:
    yield "why", symptom.reason
    if symptom.since_ms is not None:
        yield "since", f"{clock.time(symptom.since_ms)} at the earliest"
    yield "to do", symptom.to_do


def _holdings(report: PollReport) -> Lines:
    """Yield the queues that each client says it holds, and its computed share if that differs."""
    answers = {client.client_id: client for client in report.poll.clients}
    for client_id in report.poll.client_ids[:MAX_CLIENTS]:
        share = sorted(report.shares.get(client_id, []))
        answer = answers.get(client_id)
        name = report.poll.client_text(client_id)
        if answer is None or answer.error is not None:
            why = "was not asked" if answer is None else f"gave no answer: {answer.error}"
            yield name, f"{why}; its share is {queues_text(share) or 'none, or not known'}"
            continue
        held = answer.queues
        yield name, queues_text(held) or "no queues"
        if client_id in report.shares and share != held:
            yield (
                "",
                f"its share, among the clients that the brokers have now, is {queues_text(share) or 'none'}",
            )
    hidden = len(report.poll.client_ids) - MAX_CLIENTS
    if hidden > 0:
        yield "", f"and {count(hidden, 'more client')}"
