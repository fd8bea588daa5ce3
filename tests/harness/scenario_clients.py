"""The clients of a scenario, and the default options of their requests."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kafka_why.contract.kafka.requests import LeavingMember
from tests.harness import consumer_requests

DEFAULTS = {
    "group": "g",
    "session": "10s",
    "rebalance": "60s",
    "protocols": "range",
    "type": "consumer",
    "api": "9",
}
API_OF = {"sync": 5, "heartbeat": 4, "leave": 5, "commit": 9, "txn-commit": 5, "fetch": 9, "member": 1}
REMEMBERED = (*DEFAULTS, "instance", "topics", "partitions", "subscription", *consumer_requests.JOINED_WITH)


@dataclass
class Client:
    """A client: the options of its last join, its member id, and its generation."""

    name: str
    joined_with: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    member_id: str = ""
    generation: int = -1
    protocol_name: str | None = None
    member_options: dict[str, str] = field(default_factory=dict)


def leaving(client: Client, given: dict[str, str], resolve: Callable[[str], str]) -> list[LeavingMember]:
    """Return the members of a LeaveGroup: the client itself, or those that it names."""
    reason = given.get("reason")
    if "members" not in given:
        return [LeavingMember(client.member_id, optional(given.get("instance")), reason)]
    pairs = [part.partition("/") for part in given["members"].split(",") if part]
    return [LeavingMember(resolve(m), i if slash else None, reason) for m, slash, i in pairs]


def optional(text: str | None) -> str | None:
    return None if text == "none" else text
