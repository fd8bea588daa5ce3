"""Records on the topics: JSON, UTF-8, one msgspec Struct a record. The formats are told in docs/protocol.md.

Requests are decoded here and nowhere else. What cannot be a request becomes a `Refusal` that says why and,
where it can be read, whom to tell.
"""

import re
from enum import StrEnum
from uuid import UUID

import msgspec
from msgspec import Struct

from state.dispatch import AnyRequest
from state.errors import ErrorCode
from state.kafka.requests import TopicMetadata
from state.messages import RECORD_VERSION, ErrorResponse, Int32, ShortStr
from state.rocketmq.requests import ConnectionClosed

# The value of a clock record, and the pattern Spark recognises it by (15 digits cannot overflow Spark's
# microseconds). The second group is the epoch of the owner that appended it; older ones have none.
CLOCK_PATTERN = r'^\{"type":"Clock","time_ms":(\d{1,15})(?:,"owner_epoch":(\d{1,15}))?\}$'
_CLOCK = re.compile(CLOCK_PATTERN.encode())

# A dead letter shows this much of a record's key and value each; all of it stands in the requests topic.
DEAD_LETTER_MAX_BYTES = 65_536

# Messages quote what was sent, which can be as long as the record.
MESSAGE_MAX_CHARS = 16_384


def clock_record(time_ms: int, owner_epoch: int | None = None) -> bytes:
    """A clock record that says: every request stamped up to `time_ms` is before this record or can be read
    already. `owner_epoch` is that of the claim of who appends it (`streaming.service.owner`); None: it has
    none.
    """
    if owner_epoch is None:
        return b'{"type":"Clock","time_ms":%d}' % time_ms
    return b'{"type":"Clock","time_ms":%d,"owner_epoch":%d}' % (time_ms, owner_epoch)


def is_clock_record(key: bytes | None, value: bytes | None) -> bool:
    """Whether a record of the requests topic is a clock record."""
    return key is None and value is not None and _CLOCK.fullmatch(value) is not None


class Reason(StrEnum):
    """Why a record stands in the dead-letter topic."""

    INVALID_REQUEST = "INVALID_REQUEST"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    KEY_MISMATCH = "KEY_MISMATCH"
    WRONG_PARTITION = "WRONG_PARTITION"
    NO_SUCH_REPLY_PARTITION = "NO_SUCH_REPLY_PARTITION"
    SKIPPED = "SKIPPED"
    HANDLER_FAILED = "HANDLER_FAILED"
    RESPONSE_TOO_LARGE = "RESPONSE_TOO_LARGE"


class DeadLetter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record that could not be handled, or whose handling failed; `key` and `value` are cut at
    DEAD_LETTER_MAX_BYTES. `request` is "" where it was a deadline that failed: the message names it.
    `at_ms` is the record's append time, 0 where the record is not at hand: it was answered later than read.
    """

    version: int  # no default, so that it is always written
    reason: Reason
    message: str
    request: str
    at_ms: int
    answered: bool
    key: bytes = b""
    value: bytes = b""
    value_bytes: int = 0


class CommittedOffset(Struct, frozen=True, kw_only=True):
    """A record of the offsets topic: what is committed for one partition, since which request of the log.

    `expire_at_ms` is set where the committer chose its own retention time. `incarnation` is the group's.
    `topic_id` is None while it is not known. `request` is the OffsetCommit, or the TopicMetadata that told
    the id.
    """

    group_id: str
    incarnation: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None
    request: str
    topic_id: UUID | None = None
    version: int = RECORD_VERSION


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a record of the offsets topic: a JSON array, so that no name can be taken for another."""
    return encode((group_id, topic, partition))


class Address(Struct, frozen=True):
    """The least that is needed to answer a record that is no request."""

    correlation_id: ShortStr
    reply_partition: Int32
    group_id: ShortStr = ""


class Refusal(Struct, frozen=True):
    """A record that is not a request the operator can take; `address` is None where nobody can be told."""

    reason: Reason
    message: str
    address: Address | None

    def error_code(self) -> ErrorCode:
        if self.reason is Reason.UNSUPPORTED_VERSION:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.INVALID_REQUEST

    def response(self, request_id: str) -> ErrorResponse | None:
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

# What msgspec raises for bytes that are not what they should be; the last for JSON that is nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_request(value: bytes) -> AnyRequest | Refusal:
    """A request, or why this is none."""
    try:
        request = _request_decoder.decode(value)
    except UNREADABLE as error:
        return refuse_unread(value, Reason.INVALID_REQUEST, str(error))
    if request.version != RECORD_VERSION:
        message = f"record version {request.version} is not known, only {RECORD_VERSION} is"
        return refuse(request, Reason.UNSUPPORTED_VERSION, message)
    return request


def refuse(request: AnyRequest, reason: Reason, message: str) -> Refusal:
    """Refuse a well-formed request."""
    address = None
    if not isinstance(request, ConnectionClosed | TopicMetadata):
        address = Address(request.correlation_id, request.reply_partition, request.group_id)
    return Refusal(reason, message, address)


def refuse_unread(value: bytes, reason: Reason, message: str) -> Refusal:
    """Refuse a record that is no request; whoever sent it is told if it has an address."""
    try:
        address: Address | None = _address_decoder.decode(value)
    except UNREADABLE:
        address = None
    return Refusal(reason, message, address)


def request_id(topic: str, partition: int, offset: int) -> str:
    """The id a record of the requests topic goes by."""
    return f"{topic}-{partition}-{offset}"
