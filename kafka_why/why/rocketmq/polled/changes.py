"""The changes of a RocketMQ group between two polls: who came, who went, and which queues moved."""

from collections import Counter
from collections.abc import Iterator, Set

from msgspec import Struct

from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.why.entry_text import clock
from kafka_why.why.rocketmq.polled.model import GroupPoll, Symptom, queues_text, subscriptions_text
from kafka_why.why.wording import shortened


class PolledChange(Struct, frozen=True):
    """A change that a poll at `at_ms` shows for the first time. `client_id` is None if it is not one's."""

    at_ms: int
    group_id: str
    type: str
    reason: str
    client_id: str | None = None


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
    held_then, held_now = _held(before), _held(poll)
    for client_id in sorted(held_then.keys() | held_now.keys()):
        if (client_id not in held_now and not _is_known_absent(client_id, poll, before)) or (
            client_id not in held_then and not _is_known_absent(client_id, before, poll)
        ):
            continue  # it did not answer one of the polls
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
    """Return True if `poll` lacks a client of `other`, and all brokers that it was connected to answered."""
    answered = {view.broker for view in poll.answered}
    return client_id not in poll.client_ids and all(
        view.broker in answered
        for view in other.views
        if any(connection.client_id == client_id for connection in view.connections)
    )


def _held(poll: GroupPoll) -> dict[str, Counter[MessageQueue]]:
    """Return the queues of the clients that answered. One that two clients of an id read counts twice."""
    found: dict[str, Counter[MessageQueue]] = {}
    for client in poll.reports:
        found.setdefault(client.client_id, Counter()).update(client.queues)
    return found


def symptom_changes(
    before: list[Symptom], symptoms: list[Symptom], group_id: str, at_ms: int
) -> Iterator[PolledChange]:
    """Yield the faults that began and those that are over."""
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
