"""The limits on sizes, in bytes. All of them follow from `max.message.bytes` of two topics."""

from typing import NamedTuple

MIB = 1024 * 1024

# The maximum bytes of a record beside its value: key, headers, the batch around it.
RECORD_OVERHEAD_BYTES = 64 * 1024

# `max.message.bytes` of new topics of requests and responses. A broker with `message.max.bytes` 8 MiB stores
# a group of 8 MiB in one record, as the embedded broker does. Base64 makes 10.7 MiB of these. The rest is for
# the names of JSON's fields.
CREATED_TOPIC_BYTES = 12 * MIB
# The least that existing topics may have. Earlier versions created topics of this size.
LEAST_REQUESTS_TOPIC_BYTES = 2 * MIB + RECORD_OVERHEAD_BYTES
LEAST_RESPONSES_TOPIC_BYTES = 7 * MIB + RECORD_OVERHEAD_BYTES
# More is not used: a producer of Spark's sink buffers no more than this (`buffer.memory`).
MOST_TOPIC_BYTES = 32 * MIB

# The maximum value of a record of the other topics. A view or an entry of the history that would be larger
# loses what it lists.
VIEW_MAX_BYTES = 7 * MIB

# Up to this size a record may have any number of entries. A larger one may have as many as fit into this size
# at three bytes each (`{},`), because entries are what a record costs: bytes in base64 cost little.
DENSE_RECORD_BYTES = 2 * MIB
_MOST_COMMAS = DENSE_RECORD_BYTES // 3

LIMIT = f"the limit (max.message.bytes of the topic, less {RECORD_OVERHEAD_BYTES})"


class SizeLimits(NamedTuple):
    """`request_max_bytes` and `response_max_bytes` are the maximum values of records, in JSON.

    A frame of more than `frame_max_bytes` is refused without being encoded. Of a smaller one the record
    decides. A JoinGroup or SyncGroup grows by a third in base64, so one that has more than three quarters is
    too large.
    """

    request_max_bytes: int
    response_max_bytes: int
    frame_max_bytes: int


def size_limits(requests_topic_bytes: int, responses_topic_bytes: int) -> SizeLimits:
    """Return the limits that follow from `max.message.bytes` of the requests and the responses topic."""
    request_max_bytes = min(requests_topic_bytes, MOST_TOPIC_BYTES) - RECORD_OVERHEAD_BYTES
    response_max_bytes = min(responses_topic_bytes, MOST_TOPIC_BYTES) - RECORD_OVERHEAD_BYTES
    return SizeLimits(request_max_bytes, response_max_bytes, frame_max_bytes=request_max_bytes)


CREATED = size_limits(CREATED_TOPIC_BYTES, CREATED_TOPIC_BYTES)
"""The limits of new topics."""


def excess(value: bytes, max_bytes: int) -> str | None:
    """Return why the value of a record of the requests topic is too large, or None if it is not."""
    if len(value) > max_bytes:
        return f"the record has {len(value)} bytes, {LIMIT} is {max_bytes}"
    if len(value) > DENSE_RECORD_BYTES and (commas := value.count(b",")) > _MOST_COMMAS:
        return (
            f"the record has {len(value)} bytes and {commas} commas, "
            f"one of more than {DENSE_RECORD_BYTES} bytes may have {_MOST_COMMAS}"
        )
    return None
