"""A report by polls as text: the faults first, then which client holds which queues."""

from collections import Counter

from kafka_why.escaping import VisibleText, visible_text
from kafka_why.rocketmq_group import subscription_text
from kafka_why.why.rocketmq.polled.model import GroupPoll, PollReport, Symptom, queues_text
from kafka_why.why.wording import INDENT, Clock, Lines, columns, count, listing, shortened

MAX_CLIENTS, MAX_TOPICS = 50, 20
"""Clients whose queues are shown, and topics."""


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
    queues = sum(queue.topic == topic for queue in poll.queues)
    offsets = [one for one in poll.offsets if one.queue.topic == topic and one.stored is not None]
    behind = (
        f"{count(sum(one.behind for one in offsets), 'message')} behind" if offsets else "no stored offset"
    )
    return f"{subscription_text(topic, ' and '.join(expressions))}: {count(queues, 'queue')}, {behind}"


def _clients(poll: GroupPoll) -> str:
    duplicates = poll.duplicates()
    ids = [f"{c} {len(duplicates[c][1])} times" if c in duplicates else c for c in poll.client_ids]
    kinds = {one.consume_type for one in poll.answered if one.consume_type}
    return f"{shortened(ids)}; {', '.join(sorted(poll.message_models | kinds))}"


def _versions(poll: GroupPoll) -> str:
    """Return the languages and versions with the number of their clients: `JAVA V5_5_0 2, GO 317 1`."""
    told = {client.client_id: client.version for client in poll.reports}
    connections = [connection for view in poll.views for connection in view.connections]
    names = {(c.language, c.version): name for c in connections if (name := told.get(c.client_id))}
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
    """Yield the queues of each client by its own answer, and its share if that is another one."""
    answers = {client.client_id: client for client in report.poll.clients}
    for client_id in report.poll.client_ids[:MAX_CLIENTS]:
        share = sorted(report.shares.get(client_id, []))
        answer = answers.get(client_id)
        name = report.poll.named(client_id)
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
