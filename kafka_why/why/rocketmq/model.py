"""The data of a report on a RocketMQ group, and its current faults, each with clients' addresses and a
remedy. All times are milliseconds since the epoch.

The history has no rebalances. Every client computes its own share of the queues after a notification or when
its timer fires, and does not report the share. The coordinator knows only the group's clients and its own
notifications. A scan is the periodic removal of connections that are silent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from kafka_why.grouping import grouped
from kafka_why.rocketmq_group import (
    SUBSCRIPTIONS_EFFECT,
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
    shown_subscriptions,
)
from kafka_why.why.rocketmq.polled.model import PollReport, Symptom, SymptomKind, most_serious_first
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
    """Return, for each client id, the number of its connections to the broker where it has the most."""
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
    """One of the clients or connections that a change is about."""

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
    # False if the history begins later than the group or has gaps, so that connections may be missing.
    complete: bool
    traps: list[DuplicateId]  # client ids that got a second or further connection to a broker
    harmless: bool  # True if the group broadcasts, so that duplicate ids do no harm
    released: list[DuplicateId]  # client ids that have a single connection again
    # By broker, a text about clients whose subscriptions now differ; "" if they no longer do.
    differ: dict[str, str] = {}


class DuplicatePeriod(Struct, frozen=True):
    """A period in which a client id was on several connections at once.

    The list of client ids has the id several times. Each client with the id takes the share of the id's first
    entry, so the queues of the other entries have no consumer.
    """

    client_id: str
    connections: list[str]  # the id's connections to the broker where the period began
    began: int  # number of the change with which it began
    from_ms: int
    ended: int | None  # number of the change with which it ended; None while the period lasts
    to_ms: int | None
    harmless: bool  # True if the group broadcasts
    places: list[str] = []  # the clients' addresses, or their connections if unknown


class Difference(Struct, frozen=True):
    """A period in which clients of the group subscribed to different topics or filters."""

    reason: str  # names some of the clients with their addresses
    brokers: list[str]
    began: int  # number of the change with which it began
    from_ms: int
    ended: int | None = None  # number of the change with which it ended; None while the period lasts
    to_ms: int | None = None


class ChangeCount(Struct, frozen=True):
    """The number of changes of one kind, in total and for each client id."""

    kind: ChangeKind
    changes: int  # their number
    by_client: dict[str, int]


class Report(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group."""

    group_id: str
    now_ms: int
    since_ms: int | None  # earlier changes are left out; None if none are
    from_ms: int  # time of the first entry
    consumers: list[Consumer]  # current connections
    complete: bool  # False if connections may be missing
    consumers_since_ms: int  # when the connections last changed
    topics: list[str] | None  # None if the history does not have them
    request_modes: dict[str, str]  # of topics whose queues the coordinator assigns
    counts: list[ChangeCount]
    notifications: int  # number of shown changes in which the coordinator notified all connections
    traps: list[DuplicatePeriod]  # including past and harmless ones
    differences: list[Difference]
    symptoms: list[Symptom]  # current faults, the most serious first
    notes: list[str]
    changes: list[Change]
    polled: PollReport | None = None  # what polls of the group's cluster show


RECENT_MS = 3_600_000
"""Flapping clients and expired connections are reported for this time after their last event."""
FLAPS, FLAPS_WITHIN_MS = 3, 600_000
"""A client that leaves FLAPS times within FLAPS_WITHIN_MS is reported."""
VIEWS_DIFFER_MS = 30_000
"""Brokers may see different clients for this time without a fault. It is the interval of heartbeats."""


def symptoms(
    changes: Sequence[Change],
    duplicates: Iterable[DuplicatePeriod],
    differences: Iterable[Difference],
    now_ms: int,
) -> list[Symptom]:
    """Return the current faults, the most serious first. `changes` are those of the current incarnation."""
    found = (
        *_duplicates(duplicates),
        *_subscriptions(changes, differences),
        *_views(changes, now_ms),
        *_flapping(changes, now_ms),
        *_expired(changes, now_ms),
    )
    return most_serious_first(found)


def clients_text(consumers: Iterable[Consumer]) -> str:
    """Return a text such as `worker-1 (10.0.0.1:5, 10.0.0.2:7), worker-2 (10.0.0.3:9)`."""
    places_by_client: dict[str, list[str]] = {}
    for consumer in consumers:
        places = places_by_client.setdefault(consumer.client_id, [])
        if consumer.place not in places:
            places.append(consumer.place)
    texts = [f"{client_id} ({shortened(places)})" for client_id, places in places_by_client.items()]
    return shortened(texts)


def _duplicates(periods: Iterable[DuplicatePeriod]) -> Iterator[Symptom]:
    """Yield the duplicate client ids that exist now and do harm."""
    for period in periods:
        if period.to_ms is not None or period.harmless:
            continue
        places = shortened(period.places) or "several connections"
        yield Symptom(
            kind=SymptomKind.DUPLICATE,
            reason=f"The client id {period.client_id} is on {places}, so queues may have no consumer: each "
            "of its clients takes the share of the id's first entry in the list of client ids",
            to_do=TO_DO_DUPLICATE,
            since_ms=period.from_ms,
            client_ids=[period.client_id],
        )


def _subscriptions(changes: Sequence[Change], differences: Iterable[Difference]) -> Iterator[Symptom]:
    """Yield the differences of clients' subscriptions that exist now."""
    for difference in differences:
        if difference.to_ms is not None:
            continue
        consumers = [c for c in changes[-1].consumers if c.broker == difference.brokers[0]] if changes else []
        by_subscriptions = grouped(
            (tuple(c.subscriptions), c) for c in consumers if c.subscriptions is not None
        )
        texts = [
            f"{shortened(shown_subscriptions(subscriptions, by_subscriptions)) or 'no topic'}: "
            f"{clients_text(clients)}"
            for subscriptions, clients in sorted(by_subscriptions.items())
        ]
        reason = "; ".join(texts) if len(texts) > 1 else difference.reason
        yield Symptom(
            kind=SymptomKind.SUBSCRIPTIONS,
            reason=f"{reason}. {SUBSCRIPTIONS_EFFECT}{_unread(by_subscriptions)}",
            to_do=TO_DO_SUBSCRIPTIONS,
            since_ms=difference.from_ms,
            client_ids=list(dict.fromkeys(c.client_id for c in consumers)),
        )


def _unread(by_subscriptions: dict[tuple[str, ...], list[Consumer]]) -> str:
    """Return a text such as `. Nobody reads the shares of worker-2 in orders`, or ""."""
    topics_and_clients = [
        ({text.partition(" (")[0] for text in subscriptions}, clients)  # a text is `orders (paid)`
        for subscriptions, clients in by_subscriptions.items()
    ]
    texts = []
    for topic in sorted({topic for topics, _ in topics_and_clients for topic in topics}):
        unsubscribed = [
            c.client_id for topics, clients in topics_and_clients if topic not in topics for c in clients
        ]
        if unsubscribed:
            texts.append(f"the shares of {shortened(list(dict.fromkeys(unsubscribed)))} in {topic}")
    return f". Nobody reads {shortened(texts)}" if texts else ""


def _views(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the brokers that have lacked some of the clients for longer than VIEWS_DIFFER_MS."""
    since_ms = None  # since when the brokers have different clients
    for change in reversed(changes):
        if len({frozenset(client_ids) for client_ids in _clients_by_broker(change).values()}) < 2:
            break
        since_ms = change.at_ms
    if since_ms is None or now_ms - since_ms < VIEWS_DIFFER_MS:
        return
    for broker, client_ids in _clients_by_broker(changes[-1]).items():
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


def _clients_by_broker(change: Change) -> dict[str, list[str]]:
    """Return the client ids that are connected to each broker after the change."""
    return grouped((consumer.broker, consumer.client_id) for consumer in change.consumers)


def _flapping(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the clients that left FLAPS times within FLAPS_WITHIN_MS, the last time within RECENT_MS."""
    # By client id, the changes with which the client left, and its places before each of them.
    departures_by_client: dict[str, list[Change]] = defaultdict(list)
    places: dict[str, list[str]] = defaultdict(list)
    before: dict[str, list[Consumer]] = {}
    for change in changes:
        present = grouped((consumer.client_id, consumer) for consumer in change.consumers)
        for client_id in before.keys() - present.keys():
            departures_by_client[client_id].append(change)
            places[client_id].append(before[client_id][0].place)
        before = present
    for client_id, departures in departures_by_client.items():
        last_ms = departures[-1].at_ms
        recent = [change for change in departures if last_ms - change.at_ms <= FLAPS_WITHIN_MS]
        if len(recent) < FLAPS or now_ms - last_ms > RECENT_MS:
            continue
        span = duration_text(last_ms - recent[0].at_ms)
        reasons = shortened(list(dict.fromkeys(c.reason for change in recent for c in change.concerned)))
        where = shortened(list(dict.fromkeys(places[client_id][-len(recent) :])))
        yield Symptom(
            kind=SymptomKind.FLAPPING,
            reason=f"{client_id} ({where}) came and went {len(recent)} times within {span}: {reasons}. "
            "All clients rebalance each time",
            to_do="check its log for why it restarts or loses its connections",
            since_ms=recent[0].at_ms,
            client_ids=[client_id],
        )


def _expired(changes: Sequence[Change], now_ms: int) -> Iterator[Symptom]:
    """Yield the connections that a scan removed within RECENT_MS. Clients are not notified of a scan."""
    expired: list[Consumer] = []
    since_ms = None  # when the first of them expired
    consumers: dict[str, Consumer] = {}  # before the change, by connection
    for change in changes:
        if ChangeKind.EXPIRED in (change.kind, *change.also) and now_ms - change.at_ms <= RECENT_MS:
            since_ms = since_ms or change.at_ms
            removed = [concerned.connection for concerned in change.concerned]
            expired += [consumers[connection] for connection in removed if connection in consumers]
        consumers = {consumer.connection: consumer for consumer in change.consumers}
    if expired:
        yield Symptom(
            kind=SymptomKind.EXPIRED,
            reason=f"{count(len(expired), 'connection')} of {clients_text(expired)} fell silent and expired. "
            "RocketMQ does not notify the others: they take over the queues when their own timers fire",
            to_do="check whether the process hung or was suspended, or lost its network",
            since_ms=since_ms,
            client_ids=list(dict.fromkeys(consumer.client_id for consumer in expired)),
        )
