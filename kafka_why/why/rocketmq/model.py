"""The data of a report on a RocketMQ group. All times are milliseconds since the epoch.

The history has no rebalances: every client computes its own share after a notification or when its timer
fires, and does not report it. The coordinator knows only the group's clients and its own notifications.
"""

from enum import StrEnum

from msgspec import Struct


class ChangeKind(StrEnum):
    """Changes that make clients rebalance, or prevent a correct rebalance. A change of several kinds is
    named after the first of them.
    """

    DUPLICATE = "duplicate client id"
    CONNECTED = "client connected"
    LEFT = "client left"
    EXPIRED = "client expired"
    REPLACED = "client id replaced"
    TOPICS = "topics changed"
    LOCKS = "locks taken over"
    MODE = "request mode set"
    NOTIFIED = "notified"


class Consumer(Struct, frozen=True):
    """A consumer's connection, and its client id."""

    client_id: str
    connection: str


class Concerned(Struct, frozen=True):
    """The client or connection that a change concerns, and the reason of the change."""

    reason: str
    client_id: str | None = None
    connection: str | None = None


class Change(Struct, frozen=True, kw_only=True):
    """The effect of one request or scan on the group.

    `also` are the change's other kinds. `trigger` is the request's id, or the scan. `topics` are the group's
    topics afterwards, None if they did not change; `topics_reason` says how they changed. `notification`
    names the reason and the number of notified connections, None if none was notified. `consumers` are the
    connections afterwards. `complete` says whether those are all, because the history may begin later than
    the group or have gaps. `traps` are the client ids that this change put on one more connection, with all
    their connections; they are `harmless` while the group broadcasts. `released` are the client ids that are
    on one connection alone again.
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
    traps: dict[str, list[str]]
    harmless: bool
    released: list[str]


class Trap(Struct, frozen=True):
    """A client id on several connections at once, from change `began` to change `ended` (None while it
    lasts).

    All these connections take the share of the id's first place among the ids, so the queues of its other
    places have no consumer. The trap is `harmless` while the group broadcasts. `connections` are all that had
    the id meanwhile.
    """

    client_id: str
    connections: list[str]
    began: int
    from_ms: int
    ended: int | None
    to_ms: int | None
    harmless: bool


class ChangeCount(Struct, frozen=True):
    """The number of changes of one kind, and the number for each client id."""

    kind: ChangeKind
    changes: int
    by_client: dict[str, int]


class Report(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """A report on a group. `consumers` are the current ones, unchanged since `consumers_since_ms`. `topics`
    is None if the history does not contain them. `request_modes` has the topics whose queues the coordinator
    assigns to clients that query it. `notifications`: how often all connections were notified.
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
    notes: list[str]
    changes: list[Change]
