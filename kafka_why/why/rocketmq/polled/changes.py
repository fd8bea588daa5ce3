"""Formats a report on polls of a RocketMQ group as text: first the faults, then the queues of each client.
Also finds the changes between two polls.
"""

from collections import Counter
from collections.abc import Iterator, Set

from msgspec import Struct

from kafka_why.contract.rocketmq.requests import MessageQueue
from kafka_why.rocketmq_group import subscription_text
from kafka_why.why.live_sources import clock
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

    brokers = {view.broker for view in before.answered} & {view.broker for view in poll.answered}
    then, now = _connections(before, brokers), _connections(poll, brokers)
    for client_id in sorted({name for name, _ in then ^ now}):
        came = sorted(place for name, place in now - then if name == client_id)
        gone = sorted(place for name, place in then - now if name == client_id)
        if came:
            yield change("ClientConnected", client_id, f"came on {shortened(came)}")
        if gone:
            rest = "; it is on no other connection" if _is_known_absent(client_id, poll, before) else ""
            yield change("ClientGone", client_id, f"is no longer on {shortened(gone)}{rest}")
    held_then, held_now = _held_queues(before), _held_queues(poll)
    for client_id in sorted(held_then.keys() | held_now.keys()):
        if (client_id not in held_now and not _is_known_absent(client_id, poll, before)) or (
            client_id not in held_then and not _is_known_absent(client_id, before, poll)
        ):
            continue  # the client did not answer one of the polls
        old, new = held_then.get(client_id, Counter()), held_now.get(client_id, Counter())
        took, gave = new - old, old - new
        texts = [f"took {queues_text(took)}"] if took else []
        texts += [f"gave up {queues_text(gave)}"] if gave else []
        if texts:
            yield change("QueuesMoved", client_id, ", ".join(texts))
    subscribed = {client.client_id: client.subscriptions for client in before.reports}
    for client in poll.reports:
        if subscribed.get(client.client_id, client.subscriptions) != client.subscriptions:
            text = subscriptions_text(client.subscriptions)
            yield change("SubscriptionChanged", client.client_id, f"subscribes to {text}")


def _connections(poll: GroupPoll, brokers: Set[str]) -> set[tuple[str, str]]:
    return {
        (c.client_id, f"{c.address} at {view.broker}")
        for view in poll.views
        if view.broker in brokers
        for c in view.connections
    }


def _is_known_absent(client_id: str, poll: GroupPoll, other: GroupPoll) -> bool:
    """Return True if the client is absent in `poll`, although all brokers that had it in `other` answered."""
    answered = {view.broker for view in poll.answered}
    return client_id not in poll.client_ids and all(
        view.broker in answered
        for view in other.views
        if any(connection.client_id == client_id for connection in view.connections)
    )


def _held_queues(poll: GroupPoll) -> dict[str, Counter[MessageQueue]]:
    """Return the queues of each client id that answered."""
    found: dict[str, Counter[MessageQueue]] = {}
    for client in poll.reports:
        # A queue counts twice if two clients with the same id hold it.
        found.setdefault(client.client_id, Counter()).update(client.queues)
    return found


def symptom_changes(
    before: list[Symptom], symptoms: list[Symptom], group_id: str, at_ms: int
) -> Iterator[PolledChange]:
    """Yield the faults that began, then the faults that are over."""
    then = {(one.kind, *one.client_ids): one for one in before}
    now = {(one.kind, *one.client_ids): one for one in symptoms}
    for key in now.keys() - then.keys():
        yield PolledChange(
            at_ms, group_id, "FaultBegan", f"{now[key].kind}: {now[key].reason}. To do: {now[key].to_do}"
        )
    for key in then.keys() - now.keys():
        yield PolledChange(at_ms, group_id, "FaultOver", f"{then[key].kind}: {then[key].reason}")


def change_line(change: PolledChange) -> str:
    """Return a change as a line of text."""
    client = f" [{change.client_id}]" if change.client_id else ""
    return f"{clock(change.at_ms)}  {change.group_id}  {change.type}{client}: {change.reason}"


MAX_CLIENTS, MAX_TOPICS = 50, 20
"""The maximum numbers of clients and of topics in the text."""


def poll_report_text(report: PollReport, clock: Clock) -> VisibleText:
    """Return the summary, the faults with their remedies, and the clients with their queues."""
    blocks: list[str] = [visible_text([_headline(report), *columns(_summary(report, clock))])]
    for number, symptom in enumerate(report.symptoms, 1):
        lines = columns(_details(symptom, clock))
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
    poll = report.poll
    earlier = (
        "once, at" if report.polled_before_ms is None else f"at {clock.time(report.polled_before_ms)} and"
    )
    yield "Polled", f"{earlier} {clock.time(poll.at_ms)} {clock.zone(poll.at_ms)}"
    if poll.client_ids:
        yield "Clients", _clients(poll)
        yield "Versions", _versions(poll)
    topics = [_topic(topic, expressions, poll) for topic, expressions in poll.topics.items()]
    yield from listing("Topics", topics[:MAX_TOPICS], len(topics) - MAX_TOPICS, "topic")
    at = [
        f"{view.broker} {view.error or count(len(view.connections), 'connection')}" for view in poll.serving
    ]
    yield "Brokers", shortened(at)
    yield from listing("Note", poll.notes)


def _topic(topic: str, expressions: list[str], poll: GroupPoll) -> str:
    text = subscription_text(topic, " and ".join(expressions))
    queues = count(sum(queue.topic == topic for queue in poll.queues), "queue")
    offsets = [one for one in poll.offsets if one.queue.topic == topic and one.stored is not None]
    if not offsets:
        return f"{text}: {queues}, no stored offset"
    late = sorted((one for one in offsets if one.behind), key=lambda one: (-one.behind, one.queue))
    by_queue = shortened([f"{one.queue.queue_id} of {one.queue.broker_name}: {one.behind}" for one in late])
    behind = count(sum(one.behind for one in late), "message")
    return f"{text}: {queues}, {behind} behind{f' ({by_queue})' if late else ''}"


def _clients(poll: GroupPoll) -> str:
    duplicates = poll.duplicates()
    ids = [f"{c} {len(duplicates[c][1])} times" if c in duplicates else c for c in poll.client_ids]
    kinds = {one.consume_type for one in poll.answered if one.consume_type}
    return f"{shortened(ids)}; {', '.join(sorted(poll.message_models | kinds))}"


def _versions(poll: GroupPoll) -> str:
    """Return the languages and versions of the clients. If there are several, each has its clients."""
    reported = {client.client_id: client.version for client in poll.reports}
    connections = [connection for view in poll.views for connection in view.connections]
    names = {(c.language, c.version): name for c in connections if (name := reported.get(c.client_id))}
    versions = {
        c.client_id: f"{c.language} {names.get((c.language, c.version), c.version)}" for c in connections
    }
    counts = Counter(versions.values()).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return ", ".join(
        f"{text} ({shortened([c for c in versions if versions[c] == text])})" for text, _ in counts
    )


def _details(symptom: Symptom, clock: Clock) -> Lines:
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
