"""What requests and responses of both protocols share, and the messages that are of neither.

Numbers are bounded as on Kafka's wire. Bytes are base64 in JSON. Unknown fields are ignored.
"""

from typing import Annotated

from msgspec import Meta, Struct

from state.errors import ErrorCode

RECORD_VERSION = 1

Int16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# A Kafka string is at most 32,767 bytes; characters are the bound that can be checked without encoding.
ShortStr = Annotated[str, Meta(max_length=32_767)]


class Request(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every request carries: who asks, about which group, and where the answer goes.

    `reply_partition` is the partition of the responses topic, `correlation_id` the asker's own name for this
    request.
    """

    group_id: ShortStr
    correlation_id: ShortStr
    reply_partition: Int32
    api_version: Int16
    client_id: ShortStr = ""
    client_host: ShortStr = ""
    version: int = RECORD_VERSION


class ReleaseGroup(Request, frozen=True, kw_only=True, tag=True):
    """Let a quarantined group go on (an operator's request, not Kafka's): see `Group.quarantined`."""


class Response(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every response carries. `rule` is the row of docs/rules.md that decided it."""

    group_id: str
    correlation_id: str
    request: str
    error_code: ErrorCode
    rule: str = ""
    version: int = RECORD_VERSION


class ReleaseGroupResponse(Response, frozen=True, kw_only=True, tag="ReleaseGroup"):
    """Nothing but the error code."""


class ErrorResponse(Response, frozen=True, kw_only=True, tag="Error"):
    """The answer to what no handler could answer: malformed, of an unknown type, or a fault of the
    coordinator.
    """

    error_message: str
