"""Who answers the requests of share groups (KIP-932). `gateway.upstream.share_groups.Coordinators` has the
modes, which are the columns here.

| request | `coordinator` | `brokers` | `off` |
|---|---|---|---|
| ShareGroupHeartbeat, ShareGroupDescribe | our coordinator | a broker | refused |
| ShareFetch, ShareAcknowledge | the partitions' leader | the partitions' leader | refused |
| DescribeShareGroupOffsets | a broker; what to ask it for is our coordinator's | a broker | refused |
| AlterShareGroupOffsets, DeleteShareGroupOffsets | our coordinator | a broker | refused |
| FindCoordinator | the listener of our choice | that of the brokers' coordinator | ours |
| ListGroups, DeleteGroups | our coordinator | our coordinator, and a broker | our coordinator |

A request is refused as by a broker whose feature `share.version` is 0, and while that feature of the
cluster's brokers is 0 every mode is `off`.
"""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis import nodes, share_group_heartbeat, share_offsets, shares_at_brokers
from gateway.apis.api import Api, Passed
from gateway.apis.context import RequestContext, Services
from gateway.apis.share_group_heartbeat import OFF
from gateway.apis.share_records import is_fetch_rewritten, rewrite_fetch, screen_session
from gateway.wire.codec import Fields
from kafka_why.contract.errors import ErrorCode


def are_offered(services: Services) -> bool:
    """Whether clients may use share groups, whoever coordinates them."""
    return not services.share_groups.are_off


async def _refuse(context: RequestContext, request: Any) -> Fields:
    return OFF


async def _refuse_offsets(context: RequestContext, request: Any) -> Fields:
    return {
        "groups": [
            {"group_id": group.group_id, "error_code": ErrorCode.UNSUPPORTED_VERSION}
            for group in request.groups
        ]
    }


APIS = (
    share_group_heartbeat.API,
    share_group_heartbeat.DESCRIBE,
    Api(key=ApiKey.ShareFetch, serve=_refuse, asks_coordinator=False, is_passed=are_offered),
    Api(key=ApiKey.ShareAcknowledge, serve=_refuse, asks_coordinator=False, is_passed=are_offered),
    Api(
        key=ApiKey.DescribeShareGroupOffsets,
        serve=_refuse_offsets,
        asks_coordinator=False,
        is_passed=are_offered,
    ),
    share_offsets.ALTER_API,
    share_offsets.DELETE_API,
)

ROWS = (
    *shares_at_brokers.ROWS,
    Passed(
        key=ApiKey.ShareFetch,
        screen=screen_session,
        is_screened=True,
        rewrite=rewrite_fetch,
        is_rewritten=is_fetch_rewritten,
    ),
    Passed(
        key=ApiKey.ShareAcknowledge,
        screen=screen_session,
        is_screened=True,
        rewrite=nodes.rewrite_endpoints,
        is_rewritten=nodes.carries_endpoints(ApiKey.ShareAcknowledge, 0),
    ),
    Passed(
        key=ApiKey.DescribeShareGroupOffsets,
        guard=shares_at_brokers.guard_offsets,
        screen=share_offsets.fill_in,
    ),
)
