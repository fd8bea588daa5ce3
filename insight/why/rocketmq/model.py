"""What is said of a RocketMQ group. All times are milliseconds since the epoch.

There are no rebalances to tell of: every client works its own share out, whenever it is told to or its timer
runs, and keeps it to itself. What the coordinator knows is who was there, and whom it told.
"""

from enum import StrEnum

from msgspec import Struct


class ChangeKind(StrEnum):
    """What makes clients rebalance, or keeps them from doing it rightly: a change that is of several kinds
    is called after the first of them.
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
    """A connection that consumes, and the client id at its other end."""

    client_id: str
    connection: str


class Concerned(Struct, frozen=True):
    """Who or what a change is about, and why it came."""

    reason: str
    client_id: str | None = None
    connection: str | None = None


class Change(Struct, frozen=True, kw_only=True):
    """What one request or scan did to the group.

    `also` are the other kinds that it is of; `trigger` is that request's id or the scan. `topics` are the
    group's afterwards, where they changed, and `topics_reason` says how. `notification` is why, and how many,
    connections were told, None where nobody was. `consumers` are the connections that are there afterwards;
    `complete` says whether those are all, for the history may begin later than the group or have gaps.
    `traps` are the client ids that this change put on one connection more, with all of theirs; they are
    `harmless` while the group broadcasts. `released` are those that are on one alone again.
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
    """A client id on several connections at once, from change `began` to change `ended` (None: still).

    All of them take the share of the id's first place among the ids, so the queues of its other places are
    read by nobody; it is `harmless` while the group broadcasts. `connections` are all that had the id
    meanwhile.
    """

    client_id: str
    connections: list[str]
    began: int
    from_ms: int
    ended: int | None
    to_ms: int | None
    harmless: bool


class ChangeCount(Struct, frozen=True):
    """How often one kind of change came, and how often by which client id."""

    kind: ChangeKind
    changes: int
    by_client: dict[str, int]


class Report(Struct, frozen=True, kw_only=True, tag_field="protocol", tag="RocketMQ"):
    """One group. `consumers` are those that are there now, since `consumers_since_ms`; `topics` is None where
    the history does not say. `request_modes` has the topics whose queues the coordinator deals out to clients
    that ask it to. `notifications`: how often everybody was told.
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
