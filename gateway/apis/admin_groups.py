"""Requests of administrators about groups: ListGroups (key 16), DescribeGroups (15) and DeleteGroups (42).

The coordinator gets one request for each group to describe or to delete. It parks the deletion of a share
group until the share coordinator has deleted the group's state. Share groups of the brokers' own coordinators
are deleted at the brokers. ListGroups lists the groups of the groups topic
(`gateway.coordinator.fresh_groups`). A list may be long. So it is built in slices, one list at a time for all
clients, and clients that wait for the same list share it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey
from msgspec.structs import asdict

from gateway.apis.api import (
    Api,
    PassedApi,
    Screened,
    group_operations,
    may_delete_group,
    may_describe_group,
    may_on_cluster,
)
from gateway.apis.batch import answer_per_group
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.shares_at_brokers import are_at_brokers
from gateway.apis.slices import batches
from gateway.authorization.acls import Operation, ResourceType
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, SHARE_STATE_TIMEOUT_MS
from gateway.coordinator.fresh_groups import Listing
from gateway.coordinator.groups import KnownGroup
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError
from gateway.wire.schema_encoder import EncodedList
from kafka_why.contract.kafka.requests import DeleteGroup, DescribeGroup
from kafka_why.contract.kafka.responses import DescribeGroupResponse
from kafka_why.contract.messages import ErrorCode
from state.kafka.share_group import PROTOCOL_TYPE as SHARE  # the type of the groups has this name, too

_FIELDS = "group_id", "protocol_type", "group_state", "group_type"


class _ListKey(NamedTuple):
    """The key by which clients share a list: everything that affects the list besides the groups."""

    version: int
    node_id: int | None
    client: tuple[str, str] | None  # None without ACLs
    states: frozenset[str]  # in lower case; empty for all states
    types: frozenset[str]  # in lower case; empty for all types


async def serve_list_groups(context: RequestContext, request: Any) -> Fields:
    """List the groups of this listener's broker that the client may describe. The first listener, which has
    no broker, lists all groups.
    """
    has_acls = context.services.authorizer is not None
    key = _ListKey(
        version=context.version,
        node_id=context.node_id,
        client=(context.principal, context.client_host) if has_acls else None,
        states=_lower_case(request.states_filter),
        types=_lower_case(request.types_filter),
    )
    entries = await context.services.groups.build_list(key, partial(_encode_list, context, key))
    if entries is None:  # the groups topic is not read yet
        return {"error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
    return {"error_code": ErrorCode.NONE, "groups": entries}


async def _encode_list(context: RequestContext, key: _ListKey, groups: Listing) -> EncodedList:
    """Encode the groups of a list in slices."""
    encoder, slices = codec.entries_encoder(context.header, "groups"), context.slices()
    is_shown = _group_filter(context, key)
    for batch in batches(groups):
        encoder.add(map(_list_entry, filter(is_shown, batch)))
        await slices.pause()
    return encoder.encoded()


def _group_filter(context: RequestContext, key: _ListKey) -> Callable[[KnownGroup], bool]:
    """Return a function that returns True if a group belongs in the list."""
    node_id, states, types = context.node_id, key.states, key.types
    may_describe = None  # the client may describe all groups
    if context.services.authorizer is not None and not may_on_cluster(context, Operation.DESCRIBE):
        may_describe = context.services.authorizer.predicate(
            context.principal, context.client_host, Operation.DESCRIBE, ResourceType.GROUP
        )

    def is_shown(group: KnownGroup) -> bool:
        return (
            (node_id is None or context.coordinator_of(group.group_id, group.id_hash) == node_id)
            and (not states or group.state.lower() in states)
            and (not types or group.group_type in types)
            and (may_describe is None or may_describe(group.group_id))
        )

    return is_shown


def _list_entry(group: KnownGroup) -> Fields:
    return {
        "group_id": group.group_id,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.group_type,
    }


async def _screen_list_groups(context: RequestContext, message: bytes) -> Screened | None:
    """List the share groups of the listener's broker together with the coordinator's groups."""
    request = await offload.decode_passed(context.header, message)
    own = await serve_list_groups(context, request)
    types = _lower_case(request.types_filter)
    includes_share_groups = not types or SHARE in types
    if own["error_code"] or not includes_share_groups:
        return Screened(remaining=None, refused=own)

    async def answer(response: Any) -> Fields:
        encoder, slices = codec.entries_encoder(context.header, "groups"), context.slices()
        describes_all = may_on_cluster(context, Operation.DESCRIBE)
        for batch in batches(response.groups):
            encoder.add(
                {name: getattr(group, name) for name in _FIELDS}
                for group in batch
                if group.protocol_type == SHARE
                and (describes_all or may_describe_group(context, group.group_id))
            )
            await slices.pause()
        share_groups, own_groups = encoder.encoded(), own["groups"]
        count = share_groups.count + own_groups.count
        return {
            "throttle_time_ms": response.throttle_time_ms,
            "error_code": response.error_code,
            "groups": EncodedList(count, share_groups.entries + own_groups.entries),
        }

    return Screened(message, refused={}, answer=answer)


def _lower_case(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


# A list shows the effects of all earlier requests of the connection, so it is exclusive. It takes no capacity
# at the coordinator, because concurrent lists share the requests of a round
# (`gateway.coordinator.fresh_groups`).
LIST_GROUPS = Api(
    key=ApiKey.ListGroups,
    serve=serve_list_groups,
    is_exclusive=True,
    asks_coordinator=False,
    is_passed=are_at_brokers,
)
LIST_GROUPS_AT_BROKERS = PassedApi(key=ApiKey.ListGroups, is_free=True, screen=_screen_list_groups)


_FIRST_VERSION_WITH_NOT_FOUND = 6  # KIP-1043
_DEAD = "Dead"


async def serve_describe_groups(context: RequestContext, request: Any) -> Deferred:
    """Return the states and members of the groups."""
    describe = partial(_describe, context, with_operations=request.include_authorized_operations)
    return answer_per_group(context, describe, request.groups, lambda groups: {"groups": groups})


def _describe(context: RequestContext, group_id: str, *, with_operations: bool) -> Fields | Deferred:
    if not may_describe_group(context, group_id):
        return {"error_code": GatewayError.GROUP_AUTHORIZATION_FAILED, "group_id": group_id}
    response = context.send(DescribeGroup(**context.coordinator_header(group_id)), ANSWER_TIMEOUT_MS)
    return Deferred(response, partial(_described_fields, context, with_operations=with_operations))


def _described_fields(
    context: RequestContext, answer: DescribeGroupResponse, *, with_operations: bool
) -> Fields:
    described = _group_fields(context.version, answer)
    if not with_operations or described["error_code"]:
        return described
    return {**described, "authorized_operations": group_operations(context, answer.group_id)}


def _group_fields(version: int, answer: DescribeGroupResponse) -> Fields:
    """Return a group's entry in the response to a DescribeGroups of this version."""
    described = {
        "error_code": answer.error_code,
        "group_id": answer.group_id,
        "group_state": answer.group_state,
        "protocol_type": answer.protocol_type,
        "protocol_data": answer.protocol_data,
        "members": [asdict(member) for member in answer.members],
    }
    if answer.error_message:  # it is a group of the consumer protocol (row AD9)
        return {**described, "error_message": answer.error_message}
    if answer.error_code is not ErrorCode.NONE:
        return {**described, "group_state": ""}
    if answer.group_state == _DEAD and version >= _FIRST_VERSION_WITH_NOT_FOUND:
        not_found = {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"Group {answer.group_id} not found.",
        }
        return {**described, **not_found}
    return described


DESCRIBE_GROUPS = Api(key=ApiKey.DescribeGroups, serve=serve_describe_groups)


async def serve_delete_groups(context: RequestContext, request: Any) -> Deferred:
    """Delete groups that have no members."""
    group_ids = list(dict.fromkeys(request.groups_names))
    return answer_per_group(
        context, partial(_delete, context), group_ids, lambda results: {"results": results}
    )


def _delete(context: RequestContext, group_id: str) -> Fields | Deferred:
    """Start the deletion of a group, or return the refusal."""
    if not may_delete_group(context, group_id):
        return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
    is_share_group = context.services.groups.type_of(group_id) == SHARE
    timeout_ms = SHARE_STATE_TIMEOUT_MS if is_share_group else ANSWER_TIMEOUT_MS
    response = context.send(DeleteGroup(**context.coordinator_header(group_id)), timeout_ms)
    return Deferred(response, lambda answer: {"group_id": group_id, "error_code": answer.error_code})


async def _screen_delete_groups(context: RequestContext, message: bytes) -> Screened | None:
    """Delete the coordinator's groups, and let the brokers delete their share groups."""
    request = await offload.decode_passed(context.header, message)
    async with context.fan_out.acquired(context):
        deferred = await serve_delete_groups(context, request)
        results = deferred.fields(await deferred.response)["results"]
        unknown_ids = [
            result["group_id"] for result in results if result["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        ]
        # The brokers' groups of other types count as absent, because clients of the gateway do not see them.
        at_brokers = await context.services.share_groups.existing_groups(context.node_id, unknown_ids)
    own_results = [result for result in results if result["group_id"] not in at_brokers]
    if not at_brokers:
        return Screened(remaining=None, refused={"results": own_results})
    request.groups_names = [group_id for group_id in unknown_ids if group_id in at_brokers]
    remaining = await offload.with_body(context.header, message, request)
    return Screened(remaining, refused={"results": own_results})


DELETE_GROUPS = Api(
    key=ApiKey.DeleteGroups,
    serve=serve_delete_groups,
    is_passed=are_at_brokers,
)
DELETE_GROUPS_AT_BROKERS = PassedApi(key=ApiKey.DeleteGroups, is_free=True, screen=_screen_delete_groups)
