"""Messages for the tests of notify."""

from typing import Any

from kafka_why.notify.messages import ALARM, REBALANCE, Message, Status


def rebalance(number: int = 1, group: str = "orders", **fields: Any) -> Message:
    """Return a rebalance of a second."""
    given: dict[str, Any] = {
        "id": f"rebalance:{group}:i:{number}",
        "kind": REBALANCE,
        "status": Status.HAPPENED,
        "subject": group,
        "group": group,
        "sentence": "session timeout: worker-3",
        "began_ms": 1_000,
        "ended_ms": 2_000,
    }
    return Message(**given | fields)


def stuck(status: Status = Status.BEGAN, group: str = "orders", **fields: Any) -> Message:
    given: dict[str, Any] = {
        "id": f"stuck:{group}:1000",
        "kind": "stuck",
        "status": status,
        "subject": group,
        "group": group,
        "sentence": "orders-4 has no commit since 3 min 5 s",
        "began_ms": 1_000,
        "ended_ms": 5_000 if status is Status.ENDED else None,
    }
    return Message(**given | fields)


def alarm(**fields: Any) -> Message:
    given: dict[str, Any] = {
        "id": "alarm:It has an alarm:1000",
        "kind": ALARM,
        "status": Status.BEGAN,
        "subject": "It has an alarm",
        "group": None,
        "sentence": "It has an alarm: the disk is full",
        "began_ms": 1_000,
    }
    return Message(**given | fields)
