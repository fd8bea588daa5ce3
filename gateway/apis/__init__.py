"""The tables of APIs: those that the gateway answers, those that brokers answer, and those that are refused.

The modules of this package define the rows of these tables (`gateway.apis.api`). A request of an API without
a row passes undecoded. If the gateway checks ACLs, only super users may send it.

The docstrings of the modules also name rows such as HB1 or SO3. These are rules of groups, from
docs/rules.md, docs/rules-consumer.md, docs/rules-share.md and docs/rules-streams.md.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from kafka.protocol.api_key import ApiKey

from gateway.apis import (
    addresses,
    admin_groups,
    classic_members,
    handshake,
    modern_groups,
    offset_commit,
    offset_fetch,
    passed_on,
    share_groups,
    streams_groups,
    transactions,
)
from gateway.apis.api import Api, PassedApi, Rewrite, Screen, Screened, combine
from gateway.apis.context import RequestContext, Services
from gateway.upstream.share_groups import FIRST_WITH_FEATURES, SHARE_VERSION, share_level_in
from gateway.wire.codec import NewerApiKey

Row = TypeVar("Row", Api, PassedApi)


def _by_key(*rows: Row) -> Mapping[int, Row]:
    """Return the rows by API key, as plain numbers, which compare faster than enum members."""
    table = {row.key.value: row for row in rows}
    assert len(table) == len(rows), "an API has one row"
    return MappingProxyType(table)


SERVED = _by_key(
    offset_commit.OFFSET_COMMIT,
    offset_fetch.API,
    addresses.FIND_COORDINATOR,
    classic_members.JOIN_GROUP,
    classic_members.HEARTBEAT,
    classic_members.LEAVE_GROUP,
    classic_members.SYNC_GROUP,
    admin_groups.DESCRIBE_GROUPS,
    admin_groups.LIST_GROUPS,
    transactions.ADD_OFFSETS_API,
    transactions.COMMIT_API,
    admin_groups.DELETE_GROUPS,
    offset_commit.OFFSET_DELETE,
    modern_groups.CONSUMER_GROUP_HEARTBEAT,
    modern_groups.CONSUMER_GROUP_DESCRIBE,
    *share_groups.APIS,
    streams_groups.HEARTBEAT,
    streams_groups.DESCRIBE,
    handshake.GET_SUBSCRIPTIONS_API,
    handshake.PUSH_TELEMETRY_API,
)

# Requests that a client may send before it has authenticated.
SASL = _by_key(handshake.HANDSHAKE_API, handshake.AUTHENTICATE_API)

# Refused, and hidden from ApiVersions. A broker stores descriptions of streams groups' topologies (KIP-1331)
# only for groups of its own coordinator. With the share-state requests (KIP-932) a client could change any
# group's state that the gateway's principal may change. A delegation token would be a credential of that
# principal.
_REFUSED_WORDS = "ShareGroupState", "StreamsGroupTopologyDescription", "DelegationToken"
REFUSED: frozenset[int] = frozenset(
    key for key in (*ApiKey, *NewerApiKey) if any(word in key.name for word in _REFUSED_WORDS)
)


async def _restrict_api_versions(context: RequestContext, response: Any) -> None:
    """Remove the APIs and features that the gateway does not offer from a broker's response to ApiVersions,
    and add the gateway's own.
    """
    services = context.services
    if context.version >= FIRST_WITH_FEATURES:
        services.share_groups.feature_level = share_level_in(response)
    not_offered = {key for key, api in SERVED.items() if not api.is_offered(services)}
    hidden = REFUSED | not_offered
    if services.checks_forwarded_requests:
        hidden |= {key for key, api in PASSED.items() if api.is_hidden_if_checked}
    own = {key: versions for key, versions in own_versions(services).items() if key not in not_offered}
    hidden_features = handshake.HIDDEN_FEATURES
    if share_groups.are_offered(services):
        hidden_features -= {SHARE_VERSION}
    handshake.restrict_versions(response, own, PASSED_VERSIONS, hidden, hidden_features)
    if services.consumer_protocol:
        handshake.add_feature(response, context.version, handshake.GROUP_VERSION)
    if services.streams_protocol:
        handshake.add_feature(response, context.version, handshake.STREAMS_VERSION)


PASSED = _by_key(
    *passed_on.ROWS,
    *share_groups.ROWS,
    admin_groups.LIST_GROUPS_AT_BROKERS,
    admin_groups.DELETE_GROUPS_AT_BROKERS,
    PassedApi(
        key=ApiKey.ApiVersions,
        is_free=True,
        rewrite=_restrict_api_versions,
        is_rewritten=lambda version, response: not handshake.has_no_versions(response),
    ),
)


def own_versions(services: Services) -> dict[int, range]:
    """Return the versions of the APIs that the gateway answers itself.

    An API is left out if brokers answer some of its requests, because brokers must have its versions, too.
    """
    return {
        key: api.versions
        for key, api in SERVED.items()
        if key not in PASSED or (api.is_passed is not None and not api.is_passed(services))
    }


PASSED_VERSIONS: Mapping[int, range] = MappingProxyType(
    {key: api.versions for key, api in PASSED.items() if api.versions is not None}
)


def is_allowed(api_key: int, api_version: int) -> bool:
    """Return True if the gateway accepts a request of this API and version."""
    if api_key in REFUSED:
        return False
    if api_key in SERVED:
        return api_version in SERVED[api_key].versions
    return api_key not in PASSED_VERSIONS or api_version in PASSED_VERSIONS[api_key]


def rewrite_of(api_key: int, api_version: int, response: bytes) -> Rewrite | None:
    """Return the rewriter of a broker's response, or None if the response passes unchanged. Raises
    ProtocolError.
    """
    api = PASSED.get(api_key)
    if api is None or api.rewrite is None or not api.is_rewritten(api_version, response):
        return None
    return api.rewrite


def is_screening_needed(context: RequestContext) -> bool:
    """Return True if a request with this context has to be screened (`screen`)."""
    return next(_screens(context), None) is not None


async def screen(context: RequestContext, message: bytes) -> Screened | None:
    """Screen a request that passes to a broker. Return None if it may pass unchanged. Raises ProtocolError,
    UpstreamLost.
    """
    screened: Screened | None = None
    for screen_entries in _screens(context):
        remaining = message if screened is None else screened.remaining
        if remaining is None:
            break
        latest = await screen_entries(context, remaining)
        if latest is None:  # this screen changes nothing
            continue
        screened = latest if screened is None else combine(screened, latest)
    return screened


def _screens(context: RequestContext) -> Iterator[Screen]:
    """Yield the screens of a request with this context, in order. `PassedApi` describes them."""
    api, services = PASSED.get(context.header.api_key), context.services
    if services.checks_forwarded_requests:
        yield partial(passed_on.guard, api)
    if api is None:
        return
    has_groups = services.consumer_protocol or services.streams_protocol or services.share_groups.are_ours
    if api.groups is not None and has_groups:
        yield api.groups
    yield from filter(None, (api.brokers, api.internal, api.screen))
