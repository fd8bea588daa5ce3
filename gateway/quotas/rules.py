"""The quotas of a file, and which of them holds for a client.

A file is TOML. Each `[[quotas]]` names an entity as Kafka does (KIP-546): `user`, `client-id`, or both, or
`ip`. `"<default>"` stands for every user, client id or address that has no quota of its own.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

DEFAULT = "<default>"
GROUP_REQUEST_RATE, CONNECTION_CREATION_RATE = "group_request_rate", "connection_creation_rate"
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"

Entity = tuple[str | None, str | None]
"""A user and a client id. One is None if the quota does not depend on it."""


class QuotasError(ValueError):
    """A quotas file cannot be used."""


@dataclass(frozen=True, slots=True)
class QuotaRules:
    """Requests a second by entity, and new connections a second by IP address. `DEFAULT` stands for all that
    have no entry of their own.
    """

    requests: Mapping[Entity, float] = field(default_factory=dict)
    connections: Mapping[str, float] = field(default_factory=dict)

    def request_rate(self, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Return the rate that holds for a client, and the clients that share it. Returns None if there is no
        quota.

        The order is that of Kafka's ClientQuotaManager. A user's quota holds for all of its client ids
        together; a default gives each user, or each client id, a quota of its own.
        """
        for named, shared in (
            ((user, client_id), (user, client_id)),
            ((user, DEFAULT), (user, client_id)),
            ((user, None), (user, None)),
            ((DEFAULT, client_id), (user, client_id)),
            ((DEFAULT, DEFAULT), (user, client_id)),
            ((DEFAULT, None), (user, None)),
            ((None, client_id), (None, client_id)),
            ((None, DEFAULT), (None, client_id)),
        ):
            rate = self.requests.get(named)
            if rate is not None:
                return shared, rate
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return the new connections a second that an IP address may make, None without a quota."""
        return self.connections.get(address, self.connections.get(DEFAULT))


def read_quotas(path: Path) -> QuotaRules:
    """Read a quotas file. Raises QuotasError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise QuotasError(f"the quotas in {path} cannot be read: {error}") from error
    entries = document.pop("quotas", [])
    if document or not isinstance(entries, list):
        raise QuotasError(f"{path} has something else than [[quotas]]: {', '.join(document) or 'quotas'}")
    requests: dict[Entity, float] = {}
    connections: dict[str, float] = {}
    for number, entry in enumerate(entries, 1):
        try:
            _add_entry(entry, requests, connections)
        except ValueError as error:
            raise QuotasError(f"{path}, quota {number}: {error}") from error
    return QuotaRules(requests, connections)


def _add_entry(entry: Any, requests: dict[Entity, float], connections: dict[str, float]) -> None:
    if not isinstance(entry, dict):
        raise ValueError("it is not a [[quotas]] table")
    entity = {name: entry[name] for name in (_USER, _CLIENT_ID, _IP) if name in entry}
    if not all(isinstance(value, str) and value for value in entity.values()):
        raise ValueError("user, client-id and ip are strings")
    rate_name = CONNECTION_CREATION_RATE if _IP in entity else GROUP_REQUEST_RATE
    if set(entry) != {*entity, rate_name} or not entity or (_IP in entity and len(entity) > 1):
        raise ValueError(
            f"it needs user, client-id or both with {GROUP_REQUEST_RATE}, "
            f"or ip with {CONNECTION_CREATION_RATE}"
        )
    rate = entry[rate_name]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ValueError(f"{rate_name} is not a number above 0")
    if _IP in entity:
        address = entity[_IP] if entity[_IP] == DEFAULT else str(ip_address(entity[_IP]))
        _add(connections, address, rate)
    else:
        _add(requests, (entity.get(_USER), entity.get(_CLIENT_ID)), rate)


def _add(rates: dict[Any, float], key: Any, rate: float) -> None:
    if key in rates:
        raise ValueError("the entity has a quota already")
    rates[key] = float(rate)
