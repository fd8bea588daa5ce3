"""Which APIs the gateway answers, which responses of brokers it changes, and which APIs it refuses.

A request of an API in none of these tables passes undecoded.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.apis import (
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    group_configs,
    heartbeat,
    internal_topics,
    join_group,
    leave_group,
    list_groups,
    nodes,
    offset_commit,
    offset_delete,
    offset_fetch,
    passed_on,
    sasl,
    sync_group,
    transactions,
)
from gateway.apis.api_versions import API_VERSIONS
from gateway.apis.context import Deferred, RequestContext
from gateway.upstream.cluster import METADATA
from gateway.wire import beside, codec
from gateway.wire.framing import PRODUCE, RequestHeader
from gateway.wire.heartbeat import decode_heartbeat
from gateway.wire.keep_alive import decode_keep_alive
from state.kafka.responses import JoinGroupResponse, SyncGroupResponse

# Returns when the request's own requests to the coordinator are on their way, in order.
Serve = Callable[[RequestContext, Any], Awaitable[codec.Fields | Deferred]]
Rewrite = Callable[[RequestContext, Any], Awaitable[None]]


def _awaitable(serve: Callable[[RequestContext, Any], codec.Fields | Deferred]) -> Serve:
    async def started(context: RequestContext, request: Any) -> codec.Fields | Deferred:
        return serve(context, request)

    return started


FETCH, FIND_COORDINATOR, DESCRIBE_QUORUM, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 1, 10, 55, 60, 75
ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT = 25, 28

OFFSET_COMMIT, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 15, 16, 42
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69

# Handlers that need nothing to wait for. None: the handler in `SERVED` has to look something up.
AT_ONCE: Mapping[int, Callable[[RequestContext, Any], codec.Fields | Deferred | None]] = MappingProxyType(
    {
        OFFSET_COMMIT: offset_commit.serve_at_once,
        HEARTBEAT: heartbeat.serve,
        LEAVE_GROUP: leave_group.serve,
        SYNC_GROUP: sync_group.serve,
        CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.serve_at_once,
    }
)

SERVED: Mapping[int, Serve] = MappingProxyType(
    {
        OFFSET_COMMIT: offset_commit.serve,
        9: offset_fetch.serve,
        FIND_COORDINATOR: find_coordinator.serve,  # except for transactions
        JOIN_GROUP: join_group.serve,
        HEARTBEAT: _awaitable(heartbeat.serve),
        LEAVE_GROUP: _awaitable(leave_group.serve),
        SYNC_GROUP: _awaitable(sync_group.serve),
        DESCRIBE_GROUPS: _awaitable(describe_groups.serve),
        LIST_GROUPS: list_groups.serve,
        ADD_OFFSETS_TO_TXN: transactions.serve_add_offsets,
        TXN_OFFSET_COMMIT: transactions.serve_commit,
        DELETE_GROUPS: _awaitable(delete_groups.serve),
        47: offset_delete.serve,
        CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.serve,
        CONSUMER_GROUP_DESCRIBE: _awaitable(consumer_group_describe.serve),
    }
)

# A connection has no other request under way with one of these. A list has what the requests before it did.
ALONE = frozenset({LIST_GROUPS})

# What a client may send before it has authenticated, where it must. Version 0 of the handshake is unframed.
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
SASL: Mapping[int, Callable[[RequestContext, Any], Awaitable[codec.Fields]]] = MappingProxyType(
    {SASL_HANDSHAKE: sasl.serve_handshake, SASL_AUTHENTICATE: sasl.serve_authenticate}
)
SASL_VERSIONS: Mapping[int, range] = MappingProxyType(
    {SASL_HANDSHAKE: range(1, 2), SASL_AUTHENTICATE: codec.versions(SASL_AUTHENTICATE)}
)

# Refused, and hidden from ApiVersions, because a broker's own coordinator would silently serve the group.
# ShareGroup* and their state (KIP-932), StreamsGroup* (KIP-1071).
_OTHER_GROUPS = frozenset({*range(76, 80), *range(83, 93)})
# The same, because a token would be a credential of the gateway's own principal. Create-, Renew-, Expire- and
# DescribeDelegationToken.
_DELEGATION_TOKENS = frozenset(range(38, 42))
REFUSED = _OTHER_GROUPS | _DELEGATION_TOKENS
# Served, and hidden from ApiVersions while the consumer protocol is switched off.
CONSUMER_PROTOCOL = frozenset({CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE})

# Not parked, and answered by way of the coordinator.
BOUNDED = SERVED.keys() - {FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, ADD_OFFSETS_TO_TXN}

# Counted for the quotas of clients. FindCoordinator costs the coordinator nothing.
METERED = SERVED.keys() - {FIND_COORDINATOR}

# The coordinator's responses to requests that it may park.
PARKED: Mapping[int, type[JoinGroupResponse | SyncGroupResponse]] = MappingProxyType(
    {JOIN_GROUP: JoinGroupResponse, SYNC_GROUP: SyncGroupResponse}
)

# Wait for room at the coordinator, or for their turn if they are large and may be parked.
ENTERING = BOUNDED | PARKED.keys()


def decode(header: RequestHeader, message: bytes, pause: Callable[[], None] | None = None) -> Any:
    """Decode a request of an API in `SERVED`. `pause` is called again and again if it is long. Raises
    ProtocolError.
    """
    if header.api_key == HEARTBEAT:
        return decode_heartbeat(header, message)
    if header.api_key == CONSUMER_GROUP_HEARTBEAT:
        return decode_keep_alive(header, message) or codec.decode_request(header, message, pause)
    if header.api_key == FIND_COORDINATOR:
        return codec.decode_passed(header, message, pause)  # a broker answers for transactions
    return codec.decode_request(header, message, pause)


async def decoded(header: RequestHeader, message: bytes) -> Any:
    """As `decode`, beside the event loop if the message is large."""
    if len(message) <= beside.AT_ONCE_BYTES:
        return decode(header, message)
    return await beside.run(decode, header, message, beside.pause)


# Passed to the broker, except for the entries that name the coordinator's own topics. With ACLs, the entries
# that the client may not send are taken out, too (`passed_on.GUARDED`).
SCREENED = internal_topics.SCREENED


async def _restrict(context: RequestContext, response: Any) -> None:
    services = context.services
    hidden = REFUSED | passed_on.HIDDEN if services.checks_passed_on else REFUSED
    own = OWN_VERSIONS
    if not services.consumer_protocol:
        hidden |= CONSUMER_PROTOCOL
        own = {key: versions for key, versions in own.items() if key not in CONSUMER_PROTOCOL}
    api_versions.restrict(response, own, BOUNDS, hidden)
    if services.consumer_protocol:
        api_versions.add_group_version(response, context.version)


REWRITTEN: Mapping[int, Rewrite] = MappingProxyType(
    {
        PRODUCE: nodes.rewrite_endpoints,
        FETCH: nodes.rewrite_endpoints,
        METADATA: nodes.rewrite_metadata,
        FIND_COORDINATOR: find_coordinator.rewrite,
        API_VERSIONS: _restrict,
        DESCRIBE_CLUSTER: nodes.rewrite_cluster,
        DESCRIBE_TOPIC_PARTITIONS: internal_topics.rewrite_topic_partitions,
    }
)

# Responses that carry addresses only in a tagged field, by the first version that has the field. Responses of
# earlier versions pass undecoded.
NODE_ENDPOINTS_TAG = 0
FIRST_VERSION_WITH_ENDPOINTS: Mapping[int, int] = MappingProxyType({PRODUCE: 10, FETCH: 16})

OWN_VERSIONS: Mapping[int, range] = MappingProxyType(
    {key: codec.versions(key) for key in SERVED if key not in REWRITTEN}
)
# DescribeQuorum responses carry the controllers' addresses from version 2 on.
BOUNDS: Mapping[int, range] = MappingProxyType(
    {key: codec.versions(key) for key in REWRITTEN.keys() | SCREENED | passed_on.GUARDED | group_configs.APIS}
    # Brokers name versions of Produce that they no longer accept, because librdkafka detects features by
    # them.
    | {DESCRIBE_QUORUM: range(2), PRODUCE: range(codec.versions(PRODUCE).stop)}
)


def is_allowed(api_key: int, api_version: int) -> bool:
    """Whether the gateway accepts a request of this API and version."""
    if api_key in REFUSED:
        return False
    if api_key in SERVED:
        return api_version in codec.versions(api_key)
    return api_key not in BOUNDS or api_version in BOUNDS[api_key]


def is_rewritten(api_key: int, api_version: int, response: bytes) -> bool:
    """Whether the gateway has to decode and change a broker's response. Raises ProtocolError."""
    if api_key not in REWRITTEN:
        return False
    if api_key == API_VERSIONS:
        return not api_versions.is_refusal(response)
    if api_key not in FIRST_VERSION_WITH_ENDPOINTS:
        return True
    if api_version < FIRST_VERSION_WITH_ENDPOINTS[api_key]:
        return False
    return NODE_ENDPOINTS_TAG in codec.response_tags(api_key, api_version, response)
