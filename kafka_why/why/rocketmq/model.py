"""The data of a report on a RocketMQ group. All times are milliseconds since the epoch.

The history has no rebalances: every client computes its own share after a notification or when its timer
fires, and does not report it. The coordinator knows only the group's clients and its own notifications.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from kafka_why.why.rocketmq.polled.model import Symptom


class ChangeKind(StrEnum):
    """The kinds of changes that make clients rebalance, or prevent a correct rebalance. A change of several
    kinds has the name of the first one here.
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
    """A consumer's connection to a broker (`name/id`). `address` is its client's address, `ip:port`.

    `subscriptions` are the client's own, or None if the history does not have them.
    """

    client_id: str
    connection: str
    broker: str = ""
    address: str = ""
    subscriptions: list[str] | None = None

    @property
    def place(self) -> str:
        """The client's address, or the connection if the address is unknown."""
        return self.address or self.connection


def connections_by_client(consumers: Iterable[Consumer]) -> Counter[str]:
    """Return each client id with its number of connections to the broker that has most of them."""
    most: Counter[str] = Counter()
    for (client_id, _), number in Counter((c.client_id, c.broker) for c in consumers).items():
        most[client_id] = max(most[client_id], number)
    return most


class DuplicateId(Struct, frozen=True):
    """A client id that had several connections to one broker. `connections` are all of them, or empty once it
    no longer has several.
    """

    client_id: str
    broker: str
    connections: list[str]


class Concerned(Struct, frozen=True):
    """The client or connection that a change concerns, and the reason for the change."""

    reason: str
    client_id: str | None = None
    connection: str | None = None


class Change(Struct, frozen=True, kw_only=True):
    """The effect of one request or scan on the group.

    `also` are the change's other kinds. `trigger` is the request's id, or the scan. `topics` are the group's
    topics afterwards, or None if they did not change; `topics_reason` says how they changed. `notification`
    names the reason and the number of notified connections, or is None if none was notified. `consumers` are
    the connections afterwards. `complete` is False if others may be missing, because the history begins later
    than the group or has gaps. `traps` are the client ids that this change put on one more connection; they
    are `harmless` while the group broadcasts. `released` are the client ids that are on a single connection
    again. `differ` says by broker which clients differ in their subscriptions since this change, or "" if
    none does any longer. One client's connections to several brokers within a few seconds are one change.
    """

    number: int
    incarnation: str
    at_ms: int
    kind: ChangeKind
    also: list[ChangeKind]
    trigger: str
    concerned: list[Concerned]
    topics: list[str] | None
    topics_reason: str | None
    notification: str | None
    consumers: list[Consumer]
    complete: bool
    traps: list[DuplicateId]
    harmless: bool
    released: list[DuplicateId]
    differ: dict[str, str] = {}


class Trap(Struct, frozen=True):
    """A client id on several connections at once, from change `began` to change `ended` (None while it
    lasts).

    Each of these clients takes the share of the id's first entry in the list of client ids, so the queues
    of its other entries have no consumer. The trap is `harmless` while the group broadcasts. `connections`
    are all that had the id during this time at the broker where it began, and `places` are the clients'
    addresses, or their connections.
    """

    client_id: str
    connections: list[str]
    began: int
    from_ms: int
    ended: int | None
    to_ms: int | None
    harmless: bool
    places: list[str] = []


class Difference(Struct, frozen=True):
    """A period in which clients of the group subscribed to different topics or filters, from change `began`
    to change `ended` (None while it lasts). `reason` names some of the clients with their addresses.
    """

    reason: str
    brokers: list[str]
    began: int
    from_ms: int
    ended: int | None = None
    to_ms: int | None = None


class ChangeCount(Struct, frozen=True):
    """The number of changes of one kind, and the number for each client id."""

    kind: ChangeKind
    changes: int
    by_client: dict[str, int]


class Report(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group. `consumers` are the current ones, unchanged since `consumers_since_ms`. `topics`
    is None if the history does not contain them. `request_modes` has the topics whose queues the coordinator
    assigns to clients that query it. `notifications` counts how often all connections were notified.
    `symptoms` are the current faults, the most serious first.
    """

    group_id: str
    now_ms: int
    since_ms: int | None
    from_ms: int
    consumers: list[Consumer]
    complete: bool
    consumers_since_ms: int
    topics: list[str] | None
    request_modes: dict[str, str]
    counts: list[ChangeCount]
    notifications: int
    traps: list[Trap]
    differences: list[Difference]
    symptoms: list[Symptom]
    notes: list[str]
    changes: list[Change]
