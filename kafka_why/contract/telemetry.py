"""The records of the telemetry topic: metrics that clients pushed (KIP-714). See docs/protocol.md.

They explain rebalances. The coordinator does not read them.
"""

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import encode
from kafka_why.contract.messages import RECORD_VERSION

LAST_POLL = "consumer.last.poll.seconds.ago"
LAST_HEARTBEAT = "consumer.coordinator.last.heartbeat.seconds.ago"
POLL_IDLE_RATIO = "consumer.poll.idle.ratio.avg"


class MemberTelemetry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The metrics in one push of a member's client. The broker's time of the record is the time of the push.

    `metrics` are the values by Kafka's names without the prefix `org.apache.kafka.`, in Kafka's units. The
    client says which group and member it is; `principal`, `client_id` and `client_host` are known to the
    gateway.
    """

    version: int  # no default, so that it is always written
    group_id: str
    member_id: str
    client_instance_id: str
    client_id: str
    client_host: str
    principal: str
    push_interval_ms: int
    metrics: dict[str, float]
    group_instance_id: str | None = None
    terminating: bool = False


_decoder = msgspec.json.Decoder(MemberTelemetry)


def telemetry_key(group_id: str, member_id: str) -> bytes:
    """Return the key of a member's records. The topic is compacted, so it keeps the last record of each
    member.
    """
    return encode([group_id, member_id])


def is_of_group(key: bytes | None, group_id: str) -> bool:
    """Return True if this is the key of a member of the group."""
    return key is not None and key.startswith(encode([group_id])[:-1] + b',"')


def decode_telemetry(value: bytes) -> MemberTelemetry | None:
    """Decode a record's value. Return None if it has a later version or is unreadable."""
    try:
        found = _decoder.decode(value)
    except msgspec.DecodeError:
        return None
    return found if found.version == RECORD_VERSION else None
