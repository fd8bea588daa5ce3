"""What a push says of a member, as a record of the telemetry topic."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TypedDict
from uuid import UUID

from gateway.telemetry.otlp import ResourceMetrics
from gateway.telemetry.service import METRICS, PREFIX
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.telemetry import MemberTelemetry

# Names of resource attributes. KIP-714 and Java's clients have group_member_id, librdkafka has member_id.
_GROUP_ID, _GROUP_INSTANCE_ID = "group_id", "group_instance_id"
_MEMBER_IDS = "group_member_id", "member_id"
ID_MAX_CHARS = 1_024
"""A push with a longer id makes no record, so a record has a few KiB at most."""


class Pusher(TypedDict):
    """What the gateway knows of a push: fields of MemberTelemetry."""

    client_instance_id: str
    client_id: str
    client_host: str
    principal: str
    push_interval_ms: int
    terminating: bool


def record_of(resources: Sequence[ResourceMetrics], pusher: Pusher) -> MemberTelemetry | None:
    """The record of a push, None if it is about no member, or has no figure of what was asked for.

    A client that gets its member id between two metrics of a push sends both ids. The last one counts.
    """
    attributes = next((r.attributes for r in reversed(resources) if _member_id(r.attributes)), None)
    if attributes is None:
        return None
    group_id, member_id = attributes.get(_GROUP_ID, ""), _member_id(attributes)
    instance_id = attributes.get(_GROUP_INSTANCE_ID)
    values = {name: value for resource in resources for name, value in resource.values.items()}
    metrics = {name: values[PREFIX + name] for name in METRICS if _is_said(values, PREFIX + name)}
    is_short = all(len(text) <= ID_MAX_CHARS for text in (group_id, member_id, instance_id or ""))
    if not (group_id and metrics and is_short):
        return None
    return MemberTelemetry(
        version=RECORD_VERSION,
        group_id=group_id,
        member_id=member_id,
        group_instance_id=instance_id,
        metrics=metrics,
        **pusher,
    )


def kafka_uuid(one: UUID) -> str:
    """An id as Kafka writes it, in the logs of clients too."""
    return urlsafe_b64encode(one.bytes).decode().rstrip("=")


def _member_id(attributes: Mapping[str, str]) -> str:
    return next((attributes[name] for name in _MEMBER_IDS if attributes.get(name)), "")


def _is_said(values: Mapping[str, float], name: str) -> bool:
    """Kafka's clients send NaN for an average of nothing, and -1 for what has not happened."""
    return name in values and isfinite(values[name]) and values[name] >= 0
