"""Finds groups of the embedded broker's own coordinator. Their clients use the broker's address instead of
the gateway's.

No process of this project is a member of such a group, because its consumers and Spark's assign partitions
themselves.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import GroupState
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import SHARE
from kafka_why.lifetimes import BackgroundThread, OutageWarning

INTERVAL_S = 3.0
GROUPS_MAX = 100
"""The maximum number of groups that are shown."""
_CLIENTS_MAX = 3
_RETRY_S = 1.0
_BROKER_TIMEOUT_MS = 5_000
# The states of groups that have members.
_STATES = (
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.ASSIGNING,
    GroupState.RECONCILING,
)


class BrokerGroup(Struct, frozen=True):
    """A group with members."""

    group_id: str
    protocol: str
    state: str
    clients: list[str]  # for a classic group, each member's client id and host


def sentence(group: BrokerGroup, broker: str, gateway: str | None) -> str:
    """Return a sentence that names the group and its coordinator, and says what to do."""
    shown = group.clients[:_CLIENTS_MAX]
    more = f" and {len(group.clients) - len(shown)} more" if len(group.clients) > len(shown) else ""
    clients = f", {', '.join(shown)}{more}" if shown else ""
    instead = f"give its clients the gateway's address {gateway}" if gateway else "it needs a gateway"
    return (
        f"group {group.group_id!r} ({group.protocol} protocol, {group.state}{clients}) uses the broker's own "
        f"coordinator at {broker}, so it is not among the groups here: {instead}, or show it with "
        f"`group-coordinator observe --bootstrap-servers {broker}`"
    )


class BrokerGroups(BackgroundThread):
    """A thread that polls the broker's own coordinator for groups. `on_new` is called once for each group."""

    def __init__(
        self, client_config: ClientConfig, on_new: Callable[[BrokerGroup], None] = lambda _: None
    ) -> None:
        super().__init__("broker-groups")
        self.groups: list[BrokerGroup] = []
        """The groups of the last poll, at most GROUPS_MAX."""
        self._client_config = client_config
        self._on_new = on_new
        self._known: set[str] = set()
        self._outage = OutageWarning("polling the groups of the broker's own coordinator")

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                admin = kafka_clients.admin(
                    self._client_config,
                    bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
                    request_timeout_ms=_BROKER_TIMEOUT_MS,
                )
                with closing(admin):
                    while not self._stopped.is_set():
                        self._poll(admin)
                        self._outage.worked()
                        self._stopped.wait(INTERVAL_S)
            except Exception as error:  # noqa: BLE001 - the coordinator works without this, too
                self._outage.failed(error)
                self._stopped.wait(_RETRY_S)

    def _poll(self, admin: KafkaAdminClient) -> None:
        # Share groups of the gateway's clients are also at the broker's own coordinator.
        found = [group for group in admin.list_groups(states_filter=_STATES) if group["group_type"] != SHARE]
        listed = sorted(found, key=lambda group: str(group["group_id"]))[:GROUPS_MAX]
        classic = [group["group_id"] for group in listed if group["group_type"] == "classic"]
        described = _described(admin, classic)
        self.groups = [_group(group, described.get(group["group_id"])) for group in listed]
        for group in self.groups:
            if group.group_id not in self._known:
                self._known.add(group.group_id)
                self._on_new(group)


def _described(admin: KafkaAdminClient, group_ids: list[str]) -> dict[str, Any]:
    if not group_ids:
        return {}
    try:
        return dict(admin.describe_groups(group_ids))
    except ValueError:
        # kafka-python cannot decode what a member of one of these groups sent.
        half = len(group_ids) // 2
        return _described(admin, group_ids[:half]) | _described(admin, group_ids[half:]) if half else {}


def _group(listed: Mapping[str, Any], described: Mapping[str, Any] | None) -> BrokerGroup:
    members = [] if described is None else described["members"]
    clients = [f"{member['client_id']} at {member['client_host']}" for member in members]
    return BrokerGroup(listed["group_id"], listed["group_type"], listed["group_state"], clients)
