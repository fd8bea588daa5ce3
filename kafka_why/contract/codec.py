"""Encodes and decodes records: JSON in UTF-8, one msgspec Struct per record. docs/protocol.md describes them.

Only this module decodes requests. A record that is not a valid request becomes a `Refusal`, which has the
reason, and the sender's address if that can be read.

A pack is a record with several requests or several responses, which share the cost of a record. The first
line is `pack`, and each further line is a message. Messages have no line feeds, because msgspec writes none.
The key does not mark a pack, because a group id may be any string. The key of a pack of requests is its slot:
`crc32(group id) mod PACK_SLOTS`. All its requests are for groups of this slot and of the record's partition.
A shard (the groups that share one state of the coordinator) has whole slots, so clients need not know the
number of shards (`streaming.query.admission`).
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

import msgspec
from msgspec import Struct

from kafka_why.contract.kafka.requests import UNANSWERED as KAFKA_UNANSWERED
from kafka_why.contract.kafka.requests import AnyRequest as KafkaRequest
from kafka_why.contract.kafka.requests import Unanswered as KafkaUnanswered
from kafka_why.contract.messages import RECORD_VERSION, ErrorCode, ErrorResponse, Int32, ShortStr
from kafka_why.contract.rocketmq.requests import UNANSWERED as ROCKETMQ_UNANSWERED
from kafka_why.contract.rocketmq.requests import AnyRequest as RocketMqRequest
from kafka_why.contract.rocketmq.requests import Unanswered as RocketMqUnanswered

AnyRequest = KafkaRequest | RocketMqRequest
Unanswered = KafkaUnanswered | RocketMqUnanswered
"""A request without an answer."""
UNANSWERED = (*KAFKA_UNANSWERED, *ROCKETMQ_UNANSWERED)
"""The types of `Unanswered`, for `isinstance`."""

# The pattern of a clock record's value, for Python and for Spark (15 digits cannot overflow Spark's
# microseconds). The second group is the epoch of the appending owner's claim, if it made one. The pattern
# does not end in `$`, because Java's `$` allows a line feed at the end.
CLOCK_PATTERN = r'^\{"type":"Clock","time_ms":(\d{1,15})(?:,"owner_epoch":(\d{1,15}))?\}(?![\s\S])'
_CLOCK = re.compile(CLOCK_PATTERN.encode())

# The maximum size of the key, and of the value, in a dead letter. The requests topic has the whole record.
DEAD_LETTER_MAX_BYTES = 65_536

# Error messages quote the record, so they can be as long as the record.
MESSAGE_MAX_CHARS = 16_384


def clock_record(time_ms: int, owner_epoch: int | None = None) -> bytes:
    """Return the value of a clock record.

    It promises that every request with a timestamp up to `time_ms` is already written: before this record in
    the same partition, or in another partition.
    `owner_epoch` is the epoch of the coordinator's claim (`streaming.service.ownership.owner`), or None
    without a claim.
    """
    if owner_epoch is None:
        return b'{"type":"Clock","time_ms":%d}' % time_ms
    return b'{"type":"Clock","time_ms":%d,"owner_epoch":%d}' % (time_ms, owner_epoch)


class Clock(NamedTuple):
    """The content of a clock record."""

    time_ms: int  # up to which the sender attests that all requests are written
    owner_epoch: int | None  # of the sender's claim; None if it made none


def is_clock_record(key: bytes | None, value: bytes | None) -> bool:
    """Return True if a record of the requests topic is a clock record."""
    return clock_of(key, value) is not None


def clock_of(key: bytes | None, value: bytes | None) -> Clock | None:
    """Return the content of a clock record, or None if the record is not a clock record."""
    match = _CLOCK.fullmatch(value) if key is None and value is not None else None
    if match is None:
        return None
    time_ms, owner_epoch = match.groups()
    return Clock(int(time_ms), None if owner_epoch is None else int(owner_epoch))


class Reason(StrEnum):
    """The reason why a record is in the dead-letter topic."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_RECORD = "INVALID_RECORD"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    KEY_MISMATCH = "KEY_MISMATCH"
    WRONG_PARTITION = "WRONG_PARTITION"
    NO_SUCH_REPLY_PARTITION = "NO_SUCH_REPLY_PARTITION"
    SKIPPED = "SKIPPED"
    HANDLER_FAILED = "HANDLER_FAILED"
    RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"


class DeadLetter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record that was refused, or a record or a group's deadline whose processing failed."""

    version: int  # no default, so it is always written
    reason: Reason
    message: str  # the error; for a deadline, it names the deadline
    request: str  # id of the record, or "" for a deadline
    at_ms: int  # append time of the record; 0 for a deadline, or if the record is no longer available
    answered: bool  # True if the sender got a response
    key: bytes = b""  # cut at DEAD_LETTER_MAX_BYTES
    value: bytes = b""  # cut at DEAD_LETTER_MAX_BYTES
    value_bytes: int = 0  # size of the whole value


class CommittedOffset(Struct, frozen=True, kw_only=True):
    """A record of the offsets topic: the committed offset of one partition."""

    group_id: str
    incarnation: str  # distinguishes the group from earlier groups with the same id
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None  # None unless the client chose the retention time
    # Id of the last request that changed the record: an OffsetCommit, or a TopicMetadata with the topic id.
    # "" if the group was imported from other topics.
    request: str
    topic_id: UUID | None = None  # None if unknown
    version: int = RECORD_VERSION


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key of a record of the offsets topic: a JSON array, which is unambiguous for all names."""
    return encode((group_id, topic, partition))


decode_offset_key = msgspec.json.Decoder(tuple[str, str, int]).decode
"""Return the group, the topic and the partition of `offset_key`. Raises one of UNREADABLE."""

decode_offset = msgspec.json.Decoder(CommittedOffset).decode
"""Decode the value of a record of the offsets topic. Raises one of UNREADABLE."""


class PendingTransaction(Struct, frozen=True, kw_only=True):
    """A record of the transactions topic: a group has offsets that are pending in a transaction.

    The record does not have the offsets. A tombstone follows when they are no longer pending. Fields without
    a comment are as in the request, a TxnOffsetCommit.
    """

    group_id: str
    incarnation: str  # distinguishes the group from earlier groups with the same id
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    txn_partition: int
    txn_position: int
    txn_topic_id: UUID | None
    request: str  # id of the TxnOffsetCommit
    at_ms: int  # append time of the request
    partitions: int  # number of partitions with pending offsets
    version: int = RECORD_VERSION


def transaction_key(group_id: str, producer_id: int, request: str) -> bytes:
    """Return the key of a record of the transactions topic: a JSON array."""
    return encode((group_id, producer_id, request))


class Address(Struct, frozen=True):
    """The address for the response to a record that is not a request."""

    correlation_id: ShortStr
    reply_partition: Int32
    group_id: ShortStr = ""


class Refusal(Struct, frozen=True):
    """The refusal of a record that is not an acceptable request, for the dead letter and the response."""

    reason: Reason
    message: str
    address: Address | None  # None if no response is possible

    def error_code(self) -> ErrorCode:
        """Return the error code of the response."""
        if self.reason is Reason.UNSUPPORTED_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        if self.reason is Reason.REQUEST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's error if its own record is too large
        return ErrorCode.INVALID_REQUEST

    def response(self, request_id: str) -> ErrorResponse | None:
        """Return the response to the sender, or None if no response is possible."""
        if self.address is None:
            return None
        return ErrorResponse(
            group_id=self.address.group_id,
            correlation_id=self.address.correlation_id,
            request=request_id,
            error_code=self.error_code(),
            error_message=self.message[:MESSAGE_MAX_CHARS],
            rule="X1",
        )


_request_decoder: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)
_address_decoder = msgspec.json.Decoder(Address)
_encoder = msgspec.json.Encoder()

encode = _encoder.encode

# msgspec's errors for invalid bytes. RecursionError is for JSON that is nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_request(value: bytes) -> AnyRequest | Refusal:
    """Decode a request, or return a Refusal."""
    try:
        request = _request_decoder.decode(value)
    except UNREADABLE as error:
        return refuse_unreadable(value, Reason.INVALID_REQUEST, str(error))
    if request.version != RECORD_VERSION:
        message = f"record version {request.version} is unknown, only {RECORD_VERSION} is supported"
        return refuse(request, Reason.UNSUPPORTED_VERSION, message)
    return request


def refuse(request: AnyRequest, reason: Reason, message: str) -> Refusal:
    """Return the refusal of a well-formed request."""
    address = None
    if not isinstance(request, UNANSWERED):
        address = Address(request.correlation_id, request.reply_partition, request.group_id)
    return Refusal(reason, message, address)


def refuse_unreadable(value: bytes, reason: Reason, message: str) -> Refusal:
    """Return the refusal of a record that is not a request.

    Its sender gets a response if the address is readable.
    """
    try:
        address: Address | None = _address_decoder.decode(value)
    except UNREADABLE:
        address = None
    return Refusal(reason, message, address)


def request_id(topic: str, partition: int, offset: int, n: int | None = None) -> str:
    """Return the id of a record of the requests topic, or of request `n` of the pack in that record."""
    record = f"{topic}-{partition}-{offset}"
    return record if n is None else f"{record}#{n}"


def is_packed(request_id: str) -> bool:
    """Return True if `request_id` is of a request in a pack. Topic names have no `#`."""
    return "#" in request_id


def number_in_pack(request_id: str) -> int:
    """Return the request's number in its pack, or 0 if it is not in a pack. Raises ValueError."""
    return int(request_id.partition("#")[2] or 0)


def record_of(request_id: str) -> tuple[str, int, int]:
    """Return the topic, the partition and the offset of a request's record. Raises ValueError."""
    topic, partition, offset = request_id.partition("#")[0].rsplit("-", 2)
    return topic, int(partition), int(offset)


PACK_SLOTS = 64
PACK_MAX_REQUESTS = 1_000
PACK_MAX_BYTES = 1024 * 1024

PACK_PREFIX = b"pack\n"
_PACK_KEYS = [b"%d" % slot for slot in range(PACK_SLOTS)]

# The beginning of the error message if a coordinator refuses packs, because it has more shards than slots.
# The client then writes single requests.
NO_PACKS = "this coordinator reads no packs"


def slot_of(group_id: str) -> int:
    """Return the slot of a group's requests."""
    return crc32(group_id.encode()) % PACK_SLOTS


def pack_key(slot: int) -> bytes:
    """Return the key of a pack of requests with this slot."""
    return _PACK_KEYS[slot]


def pack(messages: Iterable[bytes]) -> bytes:
    """Return a pack of `messages`, which must not have line feeds."""
    return PACK_PREFIX + b"\n".join(messages)


def is_pack(value: bytes) -> bool:
    """Return True if a record's value is a pack."""
    return value.startswith(PACK_PREFIX)


def unpack(value: bytes) -> Sequence[bytes]:
    """Return the messages in a record's value, which is a pack or a single message."""
    return value[len(PACK_PREFIX) :].split(b"\n") if is_pack(value) else (value,)
