"""The base types of requests and responses of both protocols, Kafka's error codes, and the messages that are
common to both protocols.

Numbers have the bounds of Kafka's wire format. Bytes are base64 in JSON. Unknown fields are ignored.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

from msgspec import UNSET, Meta, Struct, UnsetType


class ErrorCode(IntEnum):
    """The values of a response's `error_code`, with Kafka's numbers and names."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    STREAMS_INVALID_TOPOLOGY = 130


_NAMES = {error.value: error.name for error in ErrorCode}


def name_of(code: int) -> str | None:
    """Return Kafka's name of an error code, or None if this project does not use the code."""
    return _NAMES.get(code)


SettingValue = int | str
"""The value of a setting in records and output. A list of names is a string with commas."""


RECORD_VERSION = 1

Int16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# A Kafka string has at most 32,767 bytes. The number of characters can be checked without encoding.
ShortStr = Annotated[str, Meta(max_length=32_767)]

ANONYMOUS = "User:ANONYMOUS"
"""The principal of a client that did not authenticate, as in Kafka."""


class Response(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The fields of every response. `rule` is the row of docs/rules.md that decided the response, or ""."""

    group_id: str
    correlation_id: str
    request: str
    error_code: ErrorCode
    rule: str = ""
    version: int = RECORD_VERSION


class ReleaseGroupResponse(Response, frozen=True, kw_only=True, tag="ReleaseGroup"):
    """A response with only an error code."""


class ErrorResponse(Response, frozen=True, kw_only=True, tag="Error"):
    """The response to a request that no handler can answer.

    It is sent if the request is malformed, if its type is unknown, or if the coordinator failed.
    """

    error_message: str


A = TypeVar("A", bound=Struct)


class TypedRequest(Struct, Generic[A], frozen=True, gc=False):
    """A request that names the type of its response, as in `class Heartbeat(Request[HeartbeatResponse])`."""

    response_type: ClassVar[type[Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        (cls.response_type,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]


class Request(TypedRequest[A], frozen=True, kw_only=True, tag_field="type"):
    """The fields of every request: the client, the group, and the address of the answer."""

    group_id: ShortStr
    correlation_id: ShortStr  # the client's own id of this request
    reply_partition: Int32  # of the responses topic
    api_version: Int16
    client_id: ShortStr = ""
    client_host: ShortStr = ""
    # The client's principal, in Kafka's form `User:NAME`; None if unknown. It proves nothing, because a
    # sender with WRITE on the requests topic can name any principal.
    principal: ShortStr | None = None
    # True to get the answer only from the query, in the batch that also writes the views, offsets and
    # history, and not earlier from a replica.
    waits_for_views: bool | UnsetType = UNSET
    version: int = RECORD_VERSION


class ReleaseGroup(Request[ReleaseGroupResponse], frozen=True, kw_only=True, tag=True):
    """Let the timers of a group run again after an error stopped them (`Group.quarantined`).

    Operators send it. Kafka has no such request.
    """


class GroupType(StrEnum):
    """The product to which a group belongs.

    Groups of one product have the same step function and can be converted into each other.
    """

    KAFKA = "Kafka"
    ROCKETMQ = "RocketMQ"
