"""The data of a report on a RocketMQ group, and its current faults, each with clients' addresses and a
remedy. All times are milliseconds since the epoch.

The history has no rebalances. Every client computes its own share after a notification or when its timer
fires, and does not report the share. The coordinator knows only the group's clients and its own
notifications.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from kafka_why.rocketmq_group import (
    SUBSCRIPTIONS_EFFECT,
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
    shown_subscriptions,
)
from kafka_why.why.rocketmq.polled.model import PollReport, Symptom, SymptomKind
from kafka_why.wording import count, duration_text, shortened


class ChangeKind(StrEnum):
    """The kinds of changes that make clients rebalance, or that prevent a correct rebalance.

    The main kind of a change is the first one in this order.
    """

    DUPLICATE = "duplicate client id"
    DIFFER = "different subscriptions"
    CONNECTED = "client connected"
    LEFT = "client left"
    EXPIRED = "client expired"
    REPLACED = "client id replaced"
    TOPICS = "topics changed"
    LOCKS = "locks taken over"
    MODE = "request mode set"
    NOTIFIED = "notified"


class Consumer(Struct, frozen=True):
    """A consumer's connection to a broker."""

    client_id: str
    connection: str
    broker: str = ""  # `name/id`
    address: str = ""  # the client's `ip:port`
    subscriptions: list[str] | None = None  # None if the history does not have them

    @property
    def place(self) -> str:
        """The client's address, or its connection if the address is unknown."""
        return self.address or self.connection


def connections_by_client(consumers: Iterable[Consumer]) -> Counter[str]:
    """Return each client id's number of connections to one broker: the broker where it has the most."""
    most: Counter[str] = Counter()
    for (client_id, _), number in Counter((c.client_id, c.broker) for c in consumers).items():
        most[client_id] = max(most[client_id], number)
    return most


class DuplicateId(Struct, frozen=True):
    """A client id with several connections to one broker."""

    client_id: str
    broker: str
    connections: list[str]  # empty if it no longer has several


class Concerned(Struct, frozen=True):
    """The client or connection that a change is about."""

    reason: str  # of the change
    client_id: str | None = None
    connection: str | None = None


class Change(Struct, frozen=True, kw_only=True):
    """The effect of one request or scan on the group.

    One client's connections to several brokers within a few seconds are one change.
    """

    number: int
    incarnation: str
    at_ms: int
    kind: ChangeKind
    also: list[ChangeKind]  # other kinds of the change
    trigger: str  # id of the request, or the scan
    concerned: list[Concerned]
    topics: list[str] | None  # of the group after the change; None if unchanged
    topics_reason: str | None  # how the topics changed
    notification: str | None  # its reason, and the number of notified connections; None if there was none
    consumers: list[Consumer]  # connections after the change
    # False: the history begins later than the group or has gaps, so connections may be missing.
    complete: bool
    traps: list[DuplicateId]  # client ids that got another connection
    harmless: bool  # the group broadcasts, so traps do no harm
    released: list[DuplicateId]  # client ids that have a single connection again
    # By broker, a text about clients whose subscriptions differ; "" if they no longer do.
    differ: dict[str, str] = {}


class Trap(Struct, frozen=True):
    """A client id that is on several connections at once.

    The list of client ids has the id several times. Each client with the id takes the share of the id's first
    entry, so the queues of the other entries have no consumer.
    """

    client_id: str
    connections: list[str]  # all with the id to the broker where the trap began
    began: int  # number of the change
    from_ms: int
    ended: int | None  # number of the change; None while the trap lasts
    to_ms: int | None
    harmless: bool  # the group broadcasts
    places: list[str] = []  # the clients' addresses, or their connections if unknown


class Difference(Struct, frozen=True):
    """A period in which clients of the group subscribed to different topics or filters."""

    reason: str  # names some of the clients with their addresses
    brokers: list[str]
    began: int  # number of the change
    from_ms: int
    ended: int | None = None  # number of the change; None while the period lasts
    to_ms: int | None = None


class ChangeCount(Struct, frozen=True):
    """The number of changes of one kind, in total and for each client id."""

    kind: ChangeKind
    changes: int
    by_client: dict[str, int]


class Report(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group."""

    group_id: str
    now_ms: int
    since_ms: int | None
    from_ms: int
    consumers: list[Consumer]  # current connections
    complete: bool
    consumers_since_ms: int  # when the connections last changed
    topics: list[str] | None  # None if the history does not have them
    request_modes: dict[str, str]  # of topics whose queues the coordinator assigns
    counts: list[ChangeCount]
    notifications: int  # how often the coordinator notified all connections
    traps: list[Trap]
    differences: list[Difference]
    symptoms: list[Symptom]  # current faults, the most serious first
    notes: list[str]
    changes: list[Change]
    polled: PollReport | None = None  # what polls of the group's cluster show


RECENT_MS = 3_600_000
"""Flapping clients and expired connections are reported for this time."""
FLAPS, FLAPS_WITHIN_MS = 3, 600_000
"""A client that leaves FLAPS times within FLAPS_WITHIN_MS is reported."""
VIEWS_DIFFER_MS = 30_000
"""Brokers may see different clients for this time without a fault. It is the interval of heartbeats."""


def symptoms(
    changes: Sequence[Change], traps: Iterable[Trap], differences: Iterable[Difference], now_ms: int
) -> list[Symptom]:
    """Return the current faults, the most serious first. `changes` are those of the current incarnation."""
    found = [
        *_duplicates(traps),
        *_subscriptions(changes, differences),
        *_views(changes, now_ms),
        *_flapping(changes, now_ms),
        *_expired(changes, now_ms),
    ]
    order = list(SymptomKind)
    return sorted(found, key=lambda symptom: order.index(symptom.kind))


def clients_text(consumers: Iterable[Consumer]) -> str:
    """Return a text such as `worker-1 (10.0.0.1:5, 10.0.0.2:7), worker-2 (10.0.0.3:9)`."""
    places: dict[str, list[str]] = {}
    for consumer in consumers:
        at = places.setdefault(consumer.client_id, [])
        if consumer.place not in at:
            at.append(consumer.place)
    return shortened([f"{client_id} ({shortened(at)})" for client_id, at in places.items()])


def _duplicates(traps: Iterable[Trap]) -> Iterator[Symptom]:
    for trap in traps:
        if trap.to_ms is not None or trap.harmless:
            continue
        places = shortened(trap.places) or "several connections"
        yield Symptom(
            kind=SymptomKind.DUPLICATE,
            reason=f"The client id {trap.client_id} is on {places}, so queues may have no consumer: each of "
            "its clients takes the share of the id's first entry in the list of client ids",
            to_do=TO_DO_DUPLICATE,
            since_ms=trap.from_ms,
            client_ids=[trap.client_id],
        )


def _subscriptions(changes: Sequence[Change], differences: Iterable[Difference]) -> Iterator[Symptom]:
    for difference in differences:
        if difference.to_ms is not None:
            continue
        consumers = [c for c in changes[-1].consumers if c.broker == difference.brokers[0]] if changes else []
        by_own: dict[tuple[str, ...], list[Consumer]] = defaultdict(list)
        for consumer in consumers:
            if consumer.subscriptions is not None:
                by_own[tuple(consumer.subscriptions)].append(consumer)
        each = [
            f"{shortened(shown_subscriptions(own, by_own)) or 'no topic'}: {clients_text(some)}"
            for own, some in sorted(by_own.items())
        ]
        yield Symptom(
            kind=SymptomKind.SUBSCRIPTIONS,
            reason=f"{'; '.join(each) if len(each) > 1 else difference.reason}. {SUBSCRIPTIONS_EFFECT}"
            f"{_unread(by_own)}",
            to_do=TO_DO_SUBSCRIPTIONS,
            since_ms=difference.from_ms,
            client_ids=list(dict.fromkeys(c.client_id for c in consumers)),
        )


def _unread(by_own: dict[tuple[str, ...], list[Consumer]]) -> str:
    """Return a text such as `. Nobody reads the shares of worker-2 in orders`, or ""."""
    topics = {own: {text.partition(" (")[0] for text in own} for own in by_own}
    texts = []
    for topic in sorted(set().union(*topics.values())):
        without = [c.client_id for own, some in by_own.items() if topic not in topics[own] for c in some]
        if without:
            texts.append(f"the shares of {shortened(list(dict.fromkeys(without)))} in {topic}")
    return f". Nobody reads {shortened(texts)}" if texts else ""


def _views(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the brokers that have lacked some of the clients for longer than VIEWS_DIFFER_MS."""
    since_ms = None
    for change in reversed(changes):
        if len({frozenset(client_ids) for client_ids in _by_broker(change).values()}) < 2:
            break
        since_ms = change.at_ms
    if since_ms is None or now_ms - since_ms < VIEWS_DIFFER_MS:
        return
    for broker, client_ids in _by_broker(changes[-1]).items():
        absent = [consumer for consumer in changes[-1].consumers if consumer.client_id not in client_ids]
        if absent:
            yield Symptom(
                kind=SymptomKind.VIEWS,
                reason=f"{broker} does not list {clients_text(absent)}. A client gets the list of clients "
                f"from any broker of a topic, so if {broker} has queues of the topic, clients divide them "
                "differently",
                to_do=f"check their network connections to {broker}, and that it has all topics",
                since_ms=since_ms,
                client_ids=sorted({consumer.client_id for consumer in absent}),
            )


def _by_broker(change: Change) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for consumer in change.consumers:
        found.setdefault(consumer.broker, set()).add(consumer.client_id)
    return found


def _flapping(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the clients that left FLAPS times within FLAPS_WITHIN_MS, the last time within RECENT_MS."""
    gone: dict[str, list[Change]] = defaultdict(list)
    places: dict[str, list[str]] = defaultdict(list)
    before: dict[str, list[Consumer]] = {}
    for change in changes:
        present: dict[str, list[Consumer]] = defaultdict(list)
        for consumer in change.consumers:
            present[consumer.client_id].append(consumer)
        for client_id in before.keys() - present.keys():
            gone[client_id].append(change)
            places[client_id].append(before[client_id][0].place)
        before = present
    for client_id, departures in gone.items():
        last_ms = departures[-1].at_ms
        recent = [change for change in departures if last_ms - change.at_ms <= FLAPS_WITHIN_MS]
        if len(recent) < FLAPS or now_ms - last_ms > RECENT_MS:
            continue
        took = duration_text(last_ms - recent[0].at_ms)
        reasons = shortened(list(dict.fromkeys(c.reason for change in recent for c in change.concerned)))
        at = shortened(list(dict.fromkeys(places[client_id][-len(recent) :])))
        yield Symptom(
            kind=SymptomKind.FLAPPING,
            reason=f"{client_id} ({at}) came and went {len(recent)} times within {took}: {reasons}. "
            "All clients rebalance each time",
            to_do="check its log for why it restarts or loses its connections",
            since_ms=recent[0].at_ms,
            client_ids=[client_id],
        )


def _expired(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the connections that a scan removed within RECENT_MS. Clients are not notified of a scan."""
    expired: list[Consumer] = []
    since_ms = None
    known: dict[str, Consumer] = {}
    for change in changes:
        if ChangeKind.EXPIRED in (change.kind, *change.also) and now_ms - change.at_ms <= RECENT_MS:
            since_ms = since_ms or change.at_ms
            gone = [concerned.connection for concerned in change.concerned]
            expired += [known[connection] for connection in gone if connection in known]
        known = {consumer.connection: consumer for consumer in change.consumers}
    if expired:
        yield Symptom(
            kind=SymptomKind.EXPIRED,
            reason=f"{count(len(expired), 'connection')} of {clients_text(expired)} fell silent and expired. "
            "RocketMQ does not notify the others: they take over the queues when their own timers fire",
            to_do="check whether the process hung or was suspended, or lost its network",
            since_ms=since_ms,
            client_ids=list(dict.fromkeys(consumer.client_id for consumer in expired)),
        )
