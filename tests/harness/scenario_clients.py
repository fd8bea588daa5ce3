"""What a client of a scenario knows, and the options that its requests have unless they are given."""

from dataclasses import dataclass, field

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
    """A client's knowledge: the options of its last join, its member id, and its generation."""

    name: str
    joined_with: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    member_id: str = ""
    generation: int = -1
    protocol_name: str | None = None
    member_options: dict[str, str] = field(default_factory=dict)
