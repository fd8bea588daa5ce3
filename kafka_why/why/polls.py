"""Polls one group: its coordinator's description of it, and its committed offsets.

Source: DescribeGroupsResponse.json, ConsumerGroupDescribeResponse.json, ShareGroupDescribeResponse.json,
StreamsGroupDescribeResponse.json.
"""

from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import (
    GroupIdNotFoundError,
    IncompatibleBrokerVersion,
    KafkaError,
    UnsupportedVersionError,
    for_code,
)
from kafka.protocol.admin import DescribeGroupsRequest
from msgspec.structs import replace

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import send
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, DEAD, SHARE, STREAMS
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.now import now_ms
from kafka_why.observed.consumer_offsets.decode import (
    partitions_of,
    subscription_of,
    tasks_of,
    topology_of,
)
from kafka_why.observed.polled import ClassicPoll, EpochsPoll, PolledMember
from kafka_why.observed.records import ClassicMember
from kafka_why.wire.group_descriptions import (
    ConsumerGroupDescribeRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)

_TIMEOUT_MS = 10_000
_CLASSIC_MEMBER_TYPE = 0  # `member_type` of a consumer group's member that uses the classic protocol
_REQUESTS: dict[str, Callable[[str], Any]] = {
    CLASSIC: lambda group_id: DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False),
    CONSUMER: lambda group_id: ConsumerGroupDescribeRequest(group_ids=[group_id]),
    SHARE: lambda group_id: ShareGroupDescribeRequest(group_ids=[group_id]),
    STREAMS: lambda group_id: StreamsGroupDescribeRequest(group_ids=[group_id]),
}


def polling_client(client_config: ClientConfig) -> KafkaAdminClient:
    """Return a client for `GroupPoller`. Raises KafkaError."""
    return kafka_clients.admin(client_config, request_timeout_ms=_TIMEOUT_MS)


class GroupPoller:
    """A poller of one group, for use by one thread. All methods raise KafkaError.

    `kind` is the group type to try first. GroupAuthorizationFailedError means that the principal has no
    DESCRIBE on the group.
    """

    def __init__(self, admin: KafkaAdminClient, group_id: str, kind: str = CLASSIC) -> None:
        self._admin = admin
        self._group_id = group_id
        self._kind = kind

    def describe(self) -> ClassicPoll | EpochsPoll | None:
        """Return the coordinator's description of the group, or None if it does not exist."""
        # Try the type of the last answer before the others: False sorts first.
        for kind in sorted(_REQUESTS, key=lambda kind: kind != self._kind):
            requested_ms = now_ms()
            try:
                group = self._send(_REQUESTS[kind](self._group_id))
            except (GroupIdNotFoundError, IncompatibleBrokerVersion, UnsupportedVersionError):
                # The group has another type, or the brokers do not support this type.
                continue
            if group.group_state != DEAD:
                self._kind = kind
                return _classic_poll(group, requested_ms) if kind == CLASSIC else _epochs_poll(group, kind)
        return None

    def committed(self) -> dict[TopicPartition, int]:
        """Return the committed offsets that the principal may describe, or {} for a share group."""
        if self._kind == SHARE:
            return {}
        offsets = self._admin.list_group_offsets({self._group_id: None})[self._group_id]
        return {TopicPartition(p.topic, p.partition): committed.offset for p, committed in offsets.items()}

    def _send(self, request: Any) -> Any:
        """Send a request to the group's coordinator. Return the group in the answer."""
        manager = self._admin._manager
        try:
            coordinator = manager.run(self._admin._find_coordinator_id, self._group_id)
            (group,) = send(self._admin, request, coordinator).groups
            if group.error_code:
                raise for_code(group.error_code)(self._group_id)
        except KafkaError as error:
            if error.retriable:
                # The next call looks up the coordinator again.
                manager.cluster._coordinators.clear()
            raise
        return group


def _classic_poll(group: Any, requested_ms: int) -> ClassicPoll:
    return ClassicPoll(
        requested_ms=requested_ms,
        answered_ms=now_ms(),
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_data or None,
        members=tuple(
            ClassicMember(
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                session_timeout_ms=0,
                rebalance_timeout_ms=0,
                subscription=bytes(m.member_metadata),
                assignment=bytes(m.member_assignment),
            )
            for m in group.members
        ),
    )


def _epochs_poll(group: Any, kind: str) -> EpochsPoll:
    names: dict[bytes, str] = {}  # of topics, filled by `_polled_member`
    return EpochsPoll(
        answered_ms=now_ms(),
        kind=kind,
        state=group.group_state,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        members={m.member_id: _polled_member(m, kind, names) for m in group.members},
        names=names,
        topology=topology_of(group.topology) if kind == STREAMS and group.topology else None,
    )


def _polled_member(m: Any, kind: str, names: dict[bytes, str]) -> PolledMember:
    """Return a member of a description. Add the names of its topics, by id, to `names`."""

    def partitions_in(assignment: Any) -> Partitions:
        if kind == STREAMS:
            return tasks_of(assignment)
        topics = assignment.topic_partitions
        names.update({topic.topic_id.bytes: topic.topic_name for topic in topics})
        return partitions_of(topics)

    is_classic = kind == CONSUMER and m.member_type == _CLASSIC_MEMBER_TYPE
    subscription = subscription_of(m, kind)
    return PolledMember(
        epoch=m.member_epoch,
        subscription=replace(
            subscription, topic_names=tuple(sorted(subscription.topic_names)), is_classic=is_classic
        ),
        assigned=partitions_in(m.assignment),
        target=None if kind == SHARE else partitions_in(m.target_assignment),
    )
