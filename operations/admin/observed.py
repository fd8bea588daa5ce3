"""Groups of the cluster's own coordinator, described from the observer's topics. They are read only."""

from collections.abc import Mapping
from uuid import UUID

from clients.coordinator_client import CoordinatorClient
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import decode_offset, decode_offset_key
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupMemberDescription,
    DescribedMember,
    DescribeGroupResponse,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    GroupSnapshot,
    MemberSnapshot,
    NamedPartitions,
)
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.committed import Committed, FetchedOffsets
from kafka_why.groups.described import AnyDescribed, EpochsDescription
from kafka_why.groups.list_groups import list_groups
from kafka_why.topic_layout import ClientError
from kafka_why.topic_reader import TopicReader
from operations.admin.requests import GroupRequests, KnownTypes

# A topic's name stands in the place of its id, which the view does not have.
_NO_ID = UUID(int=0)


class ReadOnly(ClientError):
    """The groups are those of the cluster's own coordinator."""


class ObservedGroups(GroupRequests):
    """Answers the requests that describe groups from the observer's topics. Those that change a group raise
    ReadOnly.
    """

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> None:
        self._client_config = client_config
        self._layout = layout
        self._timeout_ms = timeout_ms

    @property
    def _client(self) -> CoordinatorClient:  # type: ignore[override]
        raise ReadOnly(
            f"groups of the cluster's own coordinator are read only here ({self._layout.groups_topic} is an "
            "observer's topic): change them with kafka-consumer-groups"
        )

    def wait_for_views(self) -> None:
        """The topics show what the observer has read so far, which is all there is to wait for."""

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[dict[str, AnyDescribed], dict[str, FetchedOffsets]]:
        """Describe the groups as `GroupRequests` does."""
        views = {
            view.group_id: view
            for view in list_groups(self._client_config, self._layout, self._timeout_ms)
            if isinstance(view, GroupSnapshot)
        }
        answers = {group_id: described(group_id, views.get(group_id)) for group_id in groups}
        offsets = self._offsets(set(groups)) if with_offsets else {}
        fetched = {
            group_id: FetchedOffsets(ErrorCode.NONE, offsets.get(group_id, {}))
            for group_id in (groups if with_offsets else ())
        }
        return answers, fetched

    def _offsets(self, group_ids: set[str]) -> Mapping[str, dict[TopicPartition, Committed]]:
        layout, found = self._layout, dict[str, dict[TopicPartition, Committed]]()
        with TopicReader(self._client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
            for record in reader.read_all(layout.offsets_topic, timeout_ms=self._timeout_ms):
                group_id, topic, number = decode_offset_key(record.key)
                if group_id not in group_ids:
                    continue
                of_group = found.setdefault(group_id, {})
                of_group.pop(TopicPartition(topic, number), None)
                if record.value is not None:
                    now = decode_offset(record.value)
                    of_group[TopicPartition(topic, number)] = Committed(now.offset, now.leader_epoch)
        return found


def described(group_id: str, view: GroupSnapshot | None) -> AnyDescribed:
    """The answer about a group. One without a view is Dead, as Kafka answers."""
    if view is None:
        return DescribeGroupResponse(
            group_id=group_id, correlation_id="", request="", error_code=ErrorCode.NONE
        )
    if view.consumer:
        return _with_epochs(view, view.consumer)
    return DescribeGroupResponse(
        group_id=group_id,
        correlation_id="",
        request="",
        error_code=ErrorCode.NONE,
        group_state=view.state,
        protocol_type=view.protocol_type or "",
        protocol_data=view.protocol_name or "",
        members=[
            DescribedMember(
                member_id=m.member_id,
                group_instance_id=m.group_instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                member_metadata=m.metadata,
                member_assignment=m.assignment,
            )
            for m in view.members
        ],
    )


def _with_epochs(view: GroupSnapshot, details: ConsumerGroupSnapshot) -> EpochsDescription:
    return EpochsDescription(
        group_type=details.group_type,
        sources=details.streams.subtopologies if details.streams else {},
        group_id=view.group_id,
        correlation_id="",
        request="",
        error_code=ErrorCode.NONE,
        group_state=view.state,
        group_epoch=view.generation,
        assignment_epoch=details.assignment_epoch,
        assignor_name=details.assignor_name,
        members=[_member(member) for member in view.members],
    )


def _member(member: MemberSnapshot) -> ConsumerGroupMemberDescription:
    has = member.consumer
    assert has is not None, "a member of a group of the consumer protocol"
    answers_for: NamedPartitions = {topic: list(numbers) for topic, numbers in has.assigned.items()}
    for topic, numbers in has.revoking.items():
        answers_for[topic] = sorted({*answers_for.get(topic, ()), *numbers})
    return ConsumerGroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=has.rack_id,
        member_epoch=has.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=has.subscribed_topic_names,
        subscribed_topic_regex=has.subscribed_topic_regex,
        assignment=_partitions(answers_for),
        target_assignment=_partitions(has.target),
        member_type=int(has.member_type != "classic"),
    )


def _partitions(partitions: NamedPartitions) -> list[AssignedTopicPartitions]:
    return [AssignedTopicPartitions(_NO_ID, numbers, topic) for topic, numbers in partitions.items()]
