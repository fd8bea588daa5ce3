"""The topics of one coordinator: their names, their partitions, and the size limits of records. The limits
follow from `max.message.bytes` of the requests topic and the responses topic.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

MIB = 1024 * 1024

# The maximum size of a record without its value: the key, the headers, and the overhead of the batch.
RECORD_OVERHEAD_BYTES = 64 * 1024

# `max.message.bytes` of new requests and responses topics. A broker with `message.max.bytes` 8 MiB, such as
# the embedded broker, stores a group of 8 MiB in one record. In base64 it has 10.7 MiB. The rest is for the
# names of JSON fields.
CREATED_TOPIC_BYTES = 12 * MIB
# The minimum for existing topics. Earlier versions created topics with this size.
LEAST_REQUESTS_TOPIC_BYTES = 2 * MIB + RECORD_OVERHEAD_BYTES
LEAST_RESPONSES_TOPIC_BYTES = 7 * MIB + RECORD_OVERHEAD_BYTES
# The maximum that is used even if a topic allows more: Spark's sink cannot buffer more (`buffer.memory`).
MOST_TOPIC_BYTES = 32 * MIB

# The maximum size of a record's value on each output topic but the responses topic. A view or a history entry
# that would be larger omits its lists.
VIEW_MAX_BYTES = 7 * MIB

# Up to this size, a record may have any number of JSON elements. A larger record may have as many elements
# as fit into this size at three bytes each (`{},`), because elements are expensive and base64 is cheap.
DENSE_RECORD_BYTES = 2 * MIB
_MAX_COMMAS = DENSE_RECORD_BYTES // 3  # of a larger record: it has at most one element more than commas

LIMIT = f"the limit (max.message.bytes of the topic, less {RECORD_OVERHEAD_BYTES})"


class SizeLimits(NamedTuple):
    """The maximum sizes of requests and responses, in bytes.

    A client's frame of more than `frame_max_bytes` is refused without being encoded. A smaller frame is
    refused if its record would be too large: base64 makes a JoinGroup or SyncGroup a third larger.
    """

    request_max_bytes: int  # of the JSON value of a record of the requests topic
    response_max_bytes: int  # of the JSON value of a record of the responses topic
    frame_max_bytes: int  # of a client's request in Kafka's or RocketMQ's binary format


def size_limits(requests_topic_bytes: int, responses_topic_bytes: int) -> SizeLimits:
    """Return the limits for these values of `max.message.bytes` of the two topics."""
    request_max_bytes = min(requests_topic_bytes, MOST_TOPIC_BYTES) - RECORD_OVERHEAD_BYTES
    response_max_bytes = min(responses_topic_bytes, MOST_TOPIC_BYTES) - RECORD_OVERHEAD_BYTES
    return SizeLimits(request_max_bytes, response_max_bytes, frame_max_bytes=request_max_bytes)


NEW_TOPIC_LIMITS = size_limits(CREATED_TOPIC_BYTES, CREATED_TOPIC_BYTES)
"""The limits of new topics."""


def excess(value: bytes, max_bytes: int) -> str | None:
    """Return why a value is too large for the requests topic, or None if it is not.

    It may also have too many JSON elements. Its commas are counted instead of its elements.
    """
    if len(value) > max_bytes:
        return f"the record has {len(value)} bytes, {LIMIT} is {max_bytes}"
    commas = value.count(b",") if len(value) > DENSE_RECORD_BYTES else 0
    if commas > _MAX_COMMAS:
        return (
            f"the record has {len(value)} bytes and {commas} commas, "
            f"but a record of more than {DENSE_RECORD_BYTES} bytes may have only {_MAX_COMMAS}"
        )
    return None


DEFAULT_PREFIX = "group-coordinator"
KAFKAS_OFFSETS_TOPIC = "__consumer_offsets"
"""The topic to which the cluster's own coordinator writes its groups."""
# More partitions do not divide the state, which has its own partitions in Spark. Each partition of the
# requests topic adds about 35 ms to a batch.
DEFAULT_REQUEST_PARTITIONS = 1
DEFAULT_REPLY_PARTITIONS = 16
# One partition can take the outcomes of thousands of transactions per second.
DEFAULT_TXN_MARKER_PARTITIONS = 1


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The topics of a coordinator or an observer.

    `request_max_bytes` and `response_max_bytes` are those of `SizeLimits`. The defaults are for new topics;
    `records.topic_sizes` reads the sizes of existing topics.
    """

    requests_topic: str
    responses_topic: str
    groups_topic: str
    offsets_topic: str
    events_topic: str
    dead_letters_topic: str
    owner_topic: str
    # Only the brokers write to it: every transaction with offsets includes one of its partitions, so they
    # write a marker with the transaction's outcome there.
    txn_markers_topic: str
    transactions_topic: str
    # Of the requests topic. The groups, offsets, events and telemetry topics have as many, and a group is in
    # the same partition of each.
    request_partitions: int = DEFAULT_REQUEST_PARTITIONS
    reply_partitions: int = DEFAULT_REPLY_PARTITIONS  # of the responses topic
    txn_marker_partitions: int = DEFAULT_TXN_MARKER_PARTITIONS  # must be the same for all gateways
    request_max_bytes: int = NEW_TOPIC_LIMITS.request_max_bytes
    response_max_bytes: int = NEW_TOPIC_LIMITS.response_max_bytes
    # True if an observer writes the topics. It creates only the groups, offsets, events, dead-letters and
    # sightings topics.
    is_observed: bool = False
    telemetry_topic: str = ""  # "" in a recording of a coordinator without it
    sightings_topic: str = ""  # "" for a coordinator

    @classmethod
    def named(cls, prefix: str = DEFAULT_PREFIX, **sizes: Any) -> "TopicLayout":
        """Return the layout whose topics are `<prefix>-requests`, `-responses`, and so on."""
        return cls(
            requests_topic=f"{prefix}-requests",
            responses_topic=f"{prefix}-responses",
            groups_topic=f"{prefix}-groups",
            offsets_topic=f"{prefix}-offsets",
            events_topic=f"{prefix}-events",
            dead_letters_topic=f"{prefix}-dead-letters",
            owner_topic=f"{prefix}-owner",
            txn_markers_topic=f"{prefix}-txn-markers",
            transactions_topic=f"{prefix}-transactions",
            telemetry_topic=f"{prefix}-telemetry",
            sightings_topic=f"{prefix}-sightings",
            **sizes,
        )

    @classmethod
    def observed(cls, prefix: str, partitions: int) -> "TopicLayout":
        """Return the layout of an observer, each of whose topics has `partitions` partitions."""
        return replace(cls.named(prefix, request_partitions=partitions), is_observed=True)

    @property
    def source_topic(self) -> str:
        """The topic that the query reads: the requests topic, or `__consumer_offsets` for an observer."""
        return KAFKAS_OFFSETS_TOPIC if self.is_observed else self.requests_topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of all topics, also of those that an observer does not create."""
        return (
            self.requests_topic,
            self.responses_topic,
            self.groups_topic,
            self.offsets_topic,
            self.events_topic,
            self.dead_letters_topic,
            self.owner_topic,
            self.txn_markers_topic,
            self.transactions_topic,
            self.telemetry_topic,
            *((self.sightings_topic,) if self.is_observed else ()),
        )

    @property
    def request_record_max_bytes(self) -> int:
        """The `max.message.bytes` of the requests topic."""
        return self.request_max_bytes + RECORD_OVERHEAD_BYTES

    @property
    def response_record_max_bytes(self) -> int:
        """The `max.message.bytes` of the responses topic. No other output topic has larger records."""
        return self.response_max_bytes + RECORD_OVERHEAD_BYTES

    @property
    def view_max_bytes(self) -> int:
        """The maximum size of a record's value on each output topic but the responses topic, in bytes."""
        return min(self.response_max_bytes, VIEW_MAX_BYTES)

    @property
    def sizes(self) -> SizeLimits:
        """The limits of requests, responses and clients' frames."""
        return size_limits(self.request_record_max_bytes, self.response_record_max_bytes)

    def with_sizes(self, sizes: SizeLimits) -> "TopicLayout":
        """Return the layout with these size limits."""
        return replace(
            self, request_max_bytes=sizes.request_max_bytes, response_max_bytes=sizes.response_max_bytes
        )


# The names of topics.

KAFKAS_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))

_NAME_MAX_CHARS = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_MAX_CHARS}}}")


def is_topic_name(name: str) -> bool:
    """Return True if a topic can have this name."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None
