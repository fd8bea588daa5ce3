"""The requests of a member of a classic group, sent to the coordinator by a `CoordinatorClient`."""

from collections.abc import Sequence
from concurrent.futures import Future

from clients.coordinator_client import CoordinatorClient
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, MemberAssignment, Protocol, SyncGroup
from kafka_why.contract.kafka.responses import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse

# A JoinGroup is parked until the other members have joined. Kafka's consumer allows five seconds more.
_JOIN_GRACE_MS = 5_000

# The versions of Kafka's messages that these requests have. Source: *Request.json of Apache Kafka 4.
_JOIN_VERSION, _SYNC_VERSION, _HEARTBEAT_VERSION = 9, 5, 4


def join_group(
    client: CoordinatorClient,
    group_id: str,
    protocols: Sequence[Protocol],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    member_id: str = "",
) -> Future[JoinGroupResponse]:
    """Send a JoinGroup. The response comes when the rebalance completes."""
    request = JoinGroup(
        **client.header(group_id, _JOIN_VERSION),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=list(protocols),
    )
    return client.send(request, timeout_ms=max(30_000, rebalance_timeout_ms + _JOIN_GRACE_MS))


def sync_group(
    client: CoordinatorClient,
    group_id: str,
    generation_id: int,
    member_id: str,
    assignments: Sequence[MemberAssignment],
) -> Future[SyncGroupResponse]:
    """Send a SyncGroup. The response comes when the leader has sent the assignment."""
    request = SyncGroup(
        **client.header(group_id, _SYNC_VERSION),
        generation_id=generation_id,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=list(assignments),
    )
    return client.send(request)


def heartbeat(
    client: CoordinatorClient, group_id: str, generation_id: int, member_id: str
) -> Future[HeartbeatResponse]:
    """Send a Heartbeat."""
    header = client.header(group_id, _HEARTBEAT_VERSION)
    return client.send(Heartbeat(**header, generation_id=generation_id, member_id=member_id))
