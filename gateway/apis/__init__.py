"""Which APIs the gateway answers, what it changes of the APIs that brokers answer, and which APIs it refuses.

The tables are made of the rows that the modules here have: see `gateway.apis.api`. A request of an API in
none of these tables passes undecoded. Where the gateway checks ACLs, it has to be a super user's.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from kafka.protocol.api_key import ApiKey

from gateway.apis import (
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    handshake,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    modern_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    passed_on,
    share_groups,
    sync_group,
    telemetry,
    transactions,
)
from gateway.apis.api import Api, Passed, Rewrite
from gateway.apis.context import RequestContext, Services
from gateway.upstream.share_groups import FIRST_WITH_FEATURES, SHARE_VERSION, level_in
from gateway.wire.newer_messages import NewerApiKey

Row = TypeVar("Row", Api, Passed)


def _by_key(*rows: Row) -> Mapping[int, Row]:
    """By plain numbers, which a look-up compares faster than members of an enum."""
    table = {row.key.value: row for row in rows}
    assert len(table) == len(rows), "an API has one row"
    return MappingProxyType(table)


SERVED = _by_key(
    offset_commit.API,
    offset_fetch.API,
    find_coordinator.API,
    join_group.API,
    heartbeat.API,
    leave_group.API,
    sync_group.API,
    describe_groups.API,
    list_groups.API,
    transactions.ADD_OFFSETS_API,
    transactions.COMMIT_API,
    delete_groups.API,
    offset_delete.API,
    consumer_group_heartbeat.API,
    modern_groups.CONSUMER_GROUP_DESCRIBE,
    *share_groups.APIS,
    telemetry.GET_API,
    telemetry.PUSH_API,
)

# What a client may send before it has authenticated, where it must.
SASL = _by_key(handshake.HANDSHAKE_API, handshake.AUTHENTICATE_API)

# Refused, and hidden from ApiVersions. A broker's own coordinator would silently serve groups of Streams
# (KIP-1071). With the state of share groups (KIP-932) a client could change any group's, if the gateway's
# principal may. A delegation token would be a credential of that principal.
_REFUSED_WORDS = "ShareGroupState", "StreamsGroup", "DelegationToken"
REFUSED: frozenset[int] = frozenset(
    key for key in (*ApiKey, *NewerApiKey) if any(word in key.name for word in _REFUSED_WORDS)
)


async def _restrict(context: RequestContext, response: Any) -> None:
    services = context.services
    if context.version >= FIRST_WITH_FEATURES:
        services.share_groups.set_level(level_in(response))
    hidden, own = REFUSED, own_versions(services)
    if services.checks_passed_on:
        hidden |= {key for key, api in PASSED.items() if api.is_hidden}
    if not services.consumer_protocol:
        of_consumers = {key for key, api in SERVED.items() if api.of_consumer_protocol}
        hidden |= of_consumers
        own = {key: versions for key, versions in own.items() if key not in of_consumers}
    features = handshake.HIDDEN_FEATURES
    if share_groups.are_offered(services):
        features -= {SHARE_VERSION}
    handshake.restrict(response, own, BOUNDS, hidden, features)
    if services.consumer_protocol:
        handshake.add_group_version(response, context.version)


PASSED = _by_key(
    *passed_on.ROWS,
    *share_groups.ROWS,
    list_groups.ROW,
    delete_groups.ROW,
    Passed(
        key=ApiKey.ApiVersions,
        is_free=True,
        rewrite=_restrict,
        is_rewritten=lambda version, response: not handshake.is_refusal(response),
    ),
)


def own_versions(services: Services) -> dict[int, range]:
    """The versions of the APIs that the gateway answers itself."""
    return {
        key: api.versions
        for key, api in SERVED.items()
        if key not in PASSED or (api.is_passed is not None and not api.is_passed(services))
    }


BOUNDS: Mapping[int, range] = MappingProxyType(
    {key: api.versions for key, api in PASSED.items() if api.versions is not None}
)


def is_allowed(api_key: int, api_version: int) -> bool:
    """Whether the gateway accepts a request of this API and version."""
    if api_key in REFUSED:
        return False
    if api_key in SERVED:
        return api_version in SERVED[api_key].versions
    return api_key not in BOUNDS or api_version in BOUNDS[api_key]


def rewrite_of(api_key: int, api_version: int, response: bytes) -> Rewrite | None:
    """What changes a broker's response, None if that passes. Raises ProtocolError."""
    api = PASSED.get(api_key)
    if api is None or api.rewrite is None or not api.is_rewritten(api_version, response):
        return None
    return api.rewrite
