"""ListGroups (key 16), from the groups topic: see `gateway.coordinator.fresh_groups`.

A list may have all groups that there are. So it is made in slices, one list at a time for all clients, and
clients that wait for the same list share it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, Passed
from gateway.apis.context import RequestContext
from gateway.apis.guards import may_describe_group, may_on_cluster
from gateway.apis.screened import Screened
from gateway.apis.shares_at_brokers import are_at_brokers
from gateway.apis.slices import batches
from gateway.authorization.acls import Operation, ResourceType
from gateway.coordinator.fresh_groups import Listing
from gateway.coordinator.groups import KnownGroup
from gateway.wire import beside, codec
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from gateway.wire.schema_encoder import EncodedList
from kafka_why.contract.errors import ErrorCode
from state.kafka.share_group import PROTOCOL_TYPE as SHARE  # their type has the same name

_FIELDS = "group_id", "protocol_type", "group_state", "group_type"


class _Wanted(NamedTuple):
    """All that a list depends on, beside the groups. Without ACLs it is the same for all clients. The states
    and types are in lower case; without any, all are listed.
    """

    version: int
    node_id: int | None
    client: tuple[str, str] | None
    states: frozenset[str]
    types: frozenset[str]


async def serve(context: RequestContext, request: Any) -> Fields:
    """The groups of this listener's broker that the client may describe. The first listener belongs to no
    broker and lists the groups of all.
    """
    has_acls = context.services.authorizer is not None
    wanted = _Wanted(
        context.version,
        context.node_id,
        (context.principal, context.client_host) if has_acls else None,
        _lowered(request.states_filter),
        _lowered(request.types_filter),
    )
    listed = await context.services.groups.shown(wanted, partial(_encoded, context, wanted))
    if listed is None:
        return {"error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
    return {"error_code": ErrorCode.NONE, "groups": listed}


async def _encoded(context: RequestContext, wanted: _Wanted, groups: Listing) -> EncodedList:
    encoder, slices = codec.entries_encoder(context.header, "groups"), context.slices()
    is_shown = _filter(context, wanted)
    for some in batches(groups):
        encoder.add(map(_fields, filter(is_shown, some)))
        await slices.rest()
    return encoder.encoded()


def _filter(context: RequestContext, wanted: _Wanted) -> Callable[[KnownGroup], bool]:
    """Return the function that decides whether a list has a group."""
    states, types = wanted.states, wanted.types
    may_describe = None
    if context.services.authorizer is not None and not may_on_cluster(context, Operation.DESCRIBE):
        may_describe = context.services.authorizer.decider(
            context.principal, context.client_host, Operation.DESCRIBE, ResourceType.GROUP
        )

    def is_shown(group: KnownGroup) -> bool:
        return (
            _is_here(context, group)
            and (not states or group.state.lower() in states)
            and (not types or group.group_type in types)
            and (may_describe is None or may_describe(group.group_id))
        )

    return is_shown


def _is_here(context: RequestContext, group: KnownGroup) -> bool:
    return context.node_id is None or context.coordinator_of(group.group_id, group.id_hash) == context.node_id


def _fields(group: KnownGroup) -> Fields:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.group_type,
    }


async def _screen_share_groups(context: RequestContext, message: bytes) -> Screened | None:
    """The share groups of the listener's broker, and the coordinator's groups beside them."""
    request = await beside.decode_passed(context.header, message)
    own = await serve(context, request)
    types = _lowered(request.types_filter)
    if own["error_code"] or (types and SHARE not in types):
        return Screened(None, own)

    async def answer(response: Any) -> Fields:
        encoder, slices = codec.entries_encoder(context.header, "groups"), context.slices()
        describes_all = may_on_cluster(context, Operation.DESCRIBE)
        for some in batches(response.groups):
            encoder.add(
                {name: getattr(group, name) for name in _FIELDS}
                for group in some
                if group.protocol_type == SHARE
                and (describes_all or may_describe_group(context, group.group_id))
            )
            await slices.rest()
        shares, listed = encoder.encoded(), own["groups"]
        both = EncodedList(shares.count + listed.count, shares.entries + listed.entries)
        return {
            "throttle_time_ms": response.throttle_time_ms,
            "error_code": response.error_code,
            "groups": both,
        }

    return Screened(message, {}, answer=answer)


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


# A list has what the requests before it did. It takes no room at the coordinator, because others would wait
# for that: all lists of a round share its requests.
API = Api(
    key=ApiKey.ListGroups,
    serve=serve,
    is_alone=True,
    asks_coordinator=False,
    is_passed=are_at_brokers,
)
ROW = Passed(key=ApiKey.ListGroups, is_free=True, screen=_screen_share_groups)
