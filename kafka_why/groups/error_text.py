"""Explains Kafka's errors to users."""

from kafka_why.contract.errors import ErrorCode

# Kafka's broker returns it. This tool detects it before the request, because the coordinator knows no topics.
UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"

_TEXTS = {
    UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist",
    "COORDINATOR_NOT_AVAILABLE": "the group is quarantined after a fault of the coordinator",
    "FENCED_INSTANCE_ID": "another member has this instance id",
    "GROUP_ID_NOT_FOUND": "the group does not exist",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group is subscribed to the topic",
    "INVALID_GROUP_ID": "the group id is not valid",
    "NON_EMPTY_GROUP": "the group is not empty",
    "REBALANCE_IN_PROGRESS": "the group is rebalancing",
    "UNKNOWN_MEMBER_ID": "the group has no such member",
}


def error_name(code: ErrorCode) -> str | None:
    """Return Kafka's name of an error, or None for NONE."""
    return None if code is ErrorCode.NONE else code.name


def error_text(name: str) -> str:
    """Return an error with its meaning, such as `NON_EMPTY_GROUP: the group is not empty`."""
    return f"{name}: {_TEXTS[name]}" if name in _TEXTS else name
