"""An administrator's requests to the coordinator. Requests for several groups are sent concurrently.

A request that changes a group waits for the batch that writes the change to the topics, so that a command
that follows finds the change there. Every method raises a `ClientError` of `clients.pending` if a response
does not arrive in time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from clients.barrier import wait_for_views
from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError, R
from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    ConsumerGroupDescribe,
    DeleteGroup,
    DescribeGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicPartitions,
    TransactionMarker,
)
from kafka_why.contract.kafka.responses import NO_GENERATION, OffsetCommitResponse, TopicErrors
from kafka_why.contract.kafka.share_requests import ShareGroupDescribe
from kafka_why.contract.kafka.streams_responses import StreamsGroupDescribe
from kafka_why.contract.messages import ErrorCode, ReleaseGroup, Request, Response
from kafka_why.contract.protocols.subscriptions import TopicPartition, by_topic
from kafka_why.groups.gather import Answers, KnownTypes, TopicGroupDescriber
from kafka_why.groups.list_groups import GroupOffsets
from kafka_why.topic_reader import ClientError
from operations.admin.answers import AnyDescription, offsets_of, snapshot_of

K = TypeVar("K")
A = TypeVar("A", bound=Response)

_DescribeRequest = type[DescribeGroup | ConsumerGroupDescribe | ShareGroupDescribe | StreamsGroupDescribe]
# By group type, the request that describes such a group. The numbers here are the versions of Kafka's
# messages that the requests correspond to. Source: *Request.json of Apache Kafka 4.
_DESCRIBE: Mapping[str, tuple[_DescribeRequest, int]] = MappingProxyType(
    {
        "classic": (DescribeGroup, 5),
        "consumer": (ConsumerGroupDescribe, 1),
        "share": (ShareGroupDescribe, 1),
        "streams": (StreamsGroupDescribe, 1),
    }
)
FETCH_VERSION, COMMIT_VERSION, DELETE_VERSION, OFFSET_DELETE_VERSION, LEAVE_VERSION = 9, 9, 2, 0, 5

# This many partitions fit in one request, even with names of Kafka's maximum length.
_COMMIT_MAX_PARTITIONS = 10_000

_REMOVAL_REASON = "member was removed by an admin"
_REASON_MAX_CHARS = 255


PartitionErrors = dict[TopicPartition, ErrorCode]
Removed = tuple[ErrorCode, list[ErrorCode]]
"""The outcome of a removal for the group, and for each member in order."""


class GroupRequests:
    """An administrator's requests, sent through a client. They raise if no response arrives in time."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client

    def wait_for_views(self) -> None:
        """Wait until the topics have every change that was answered before this call."""
        wait_for_views(self._client)

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the groups and, if wanted, fetch the offsets of all their partitions.

        If the type of a group in `groups` is None or has changed, requests for all types are sent. A group
        that cannot be described is returned as its error code. Groups that are not Kafka's are omitted.
        """
        send, header = self._client.send, self._client.header
        descriptions = {
            (name, group_type): send(request(**header(name, version)))
            for name, known_type in groups.items()
            for group_type, (request, version) in _DESCRIBE.items()
            if known_type in (group_type, None)
        }
        fetched_offsets = {
            name: send(OffsetFetch(**header(name, FETCH_VERSION)))
            for name in (groups if with_offsets else ())
        }
        answers: dict[str, AnyDescription] = {
            name: answer
            for (name, _), answer in _accepted_responses(descriptions).items()
            if answer.error_code is not ErrorCode.GROUP_ID_NOT_FOUND
        }
        described: Answers = {
            name: snapshot_of(answer) if answer.error_code is ErrorCode.NONE else answer.error_code
            for name, answer in answers.items()
        }
        existing = {name for name, answer in answers.items() if answer.group_state != DEAD}
        # A group that does not exist with the type in `groups` may have changed its type.
        without_type = dict.fromkeys(
            name for name, known_type in groups.items() if known_type and name not in existing
        )
        if without_type:
            described |= self.describe(without_type)[0]
        return described, {
            name: offsets_of(answer, answers.get(name))
            for name, answer in _accepted_responses(fetched_offsets).items()
        }

    def commit_offsets(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, int]],
        topic_ids: Mapping[str, UUID] = MappingProxyType({}),
    ) -> dict[str, PartitionErrors]:
        """Send OffsetCommit with these offsets of each group. Return each partition's error code, by group.

        The request names no member, so the coordinator accepts it only for a group without members. A topic
        that is not in `topic_ids` keeps the id of the replaced offset. More than 10,000 partitions are split
        among several requests. Some of them may fail.
        """
        commits = [
            (group_id, part, self._commit(group_id, part, topic_ids))
            for group_id, offsets_of_group in offsets.items()
            for part in _split(offsets_of_group)
        ]
        # No request is sent for a group without offsets, because it would create an empty group.
        errors: dict[str, PartitionErrors] = {group_id: {} for group_id in offsets}
        for group_id, part, future in commits:
            errors[group_id] |= _commit_errors(part, future.result())
        return errors

    def _commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID]
    ) -> Future[OffsetCommitResponse]:
        """Send one OffsetCommit in no member's name."""
        topics = [
            CommittedTopic(
                topic,
                [CommittedPartition(n, offsets[TopicPartition(topic, n)]) for n in numbers],
                topic_ids.get(topic),
            )
            for topic, numbers in by_topic(offsets).items()
        ]
        request = OffsetCommit(
            **self._client.header(group_id, COMMIT_VERSION),
            waits_for_views=True,
            generation_id=NO_GENERATION,
            topics=topics,
        )
        return self._client.send(request)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Send DeleteGroups. Return the error code of each group."""
        answers = self._send(
            {
                name: DeleteGroup(**self._client.header(name, DELETE_VERSION), waits_for_views=True)
                for name in group_ids
            }
        )
        return {name: answer.error_code for name, answer in answers.items()}

    def delete_offsets(
        self, group_ids: Iterable[str], partitions: Iterable[TopicPartition]
    ) -> dict[str, tuple[ErrorCode, PartitionErrors]]:
        """Send OffsetDelete for these partitions of each group.

        Return the error code of the group and, if it is NONE, the error code of each partition.
        """
        topics = [TopicPartitions(topic, numbers) for topic, numbers in by_topic(partitions).items()]
        answers = self._send(
            {
                name: OffsetDelete(
                    **self._client.header(name, OFFSET_DELETE_VERSION), waits_for_views=True, topics=topics
                )
                for name in group_ids
            }
        )
        return {name: (answer.error_code, _error_codes(answer.topics)) for name, answer in answers.items()}

    def remove_members(
        self, members: Mapping[str, Sequence[LeavingMember]], reason: str | None
    ) -> dict[str, Removed]:
        """Send LeaveGroup for the members of each group. Return the outcomes.

        The reason has the same form as in KafkaAdminClient.removeMembersFromConsumerGroup (KIP-800).
        """
        full_reason = (f"{_REMOVAL_REASON}: {reason}" if reason else _REMOVAL_REASON)[:_REASON_MAX_CHARS]
        answers = self._send(
            {
                name: LeaveGroup(
                    **self._client.header(name, LEAVE_VERSION),
                    waits_for_views=True,
                    members=[LeavingMember(m.member_id, m.group_instance_id, full_reason) for m in leaving],
                )
                for name, leaving in members.items()
            }
        )
        return {
            name: (answer.error_code, [member.error_code for member in answer.members])
            for name, answer in answers.items()
        }

    def release_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Send ReleaseGroup for each group of Kafka or RocketMQ. Return the error codes.

        A deadline of a quarantined group has failed, so none of its timers fires until it is released. The
        code is NONE, too, if the group is not quarantined or does not exist.
        """
        answers = self._send(
            {name: ReleaseGroup(**self._client.header(name), waits_for_views=True) for name in group_ids}
        )
        return {name: answer.error_code for name, answer in answers.items()}

    def abort_pending(self, pending: Sequence[PendingTransaction]) -> list[ErrorCode]:
        """Drop these pending offsets, as an ABORT marker of their transaction would.

        Return the error codes.
        """
        futures = [self._client.send(self._abort_marker(transaction)) for transaction in pending]
        codes = []
        for future in futures:
            try:
                codes.append(future.result().error_code)
            except CoordinatorError as error:
                codes.append(error.error_code)
        return codes

    def _abort_marker(self, pending: PendingTransaction) -> TransactionMarker:
        """Return the ABORT marker of this transaction, with the position of its pending offsets."""
        # A transaction of version 2 raises the producer's epoch by one when it ends (KIP-890).
        return TransactionMarker(
            **self._client.header(pending.group_id),
            waits_for_views=True,
            producer_id=pending.producer_id,
            producer_epoch=pending.producer_epoch + 1 if pending.txn_version > 1 else pending.producer_epoch,
            txn_partition=pending.txn_partition,
            txn_position=pending.txn_position,
            txn_topic_id=pending.txn_topic_id,
            first_position=pending.txn_position,
            committed=False,
        )

    def _send(self, requests: Mapping[str, Request[A]]) -> dict[str, A]:
        """Send the request for each group, all at once, and return the responses."""
        futures = {name: self._client.send(request) for name, request in requests.items()}
        return {name: future.result() for name, future in futures.items()}


class ObservedGroups(TopicGroupDescriber, GroupRequests):
    """The groups of the cluster's own coordinator, read from an observer's topics.

    The observer (`group-coordinator observe`) publishes what it sees of these groups. Requests that change a
    group raise ClientError.
    """

    @property
    def _client(self) -> CoordinatorClient:  # type: ignore[override]
        raise ClientError(
            f"groups of the cluster's own coordinator are read only here ({self._layout.groups_topic} is "
            "an observer's topic): change them with kafka-consumer-groups"
        )

    def wait_for_views(self) -> None:
        """Return at once, because no request to these groups changes the topics."""


def _accepted_responses(futures: Mapping[K, Future[R]]) -> dict[K, R]:
    """Return the responses. Requests that were refused because of the group's protocol are omitted.

    Raises CoordinatorError for any other refusal.
    """
    # ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe refuse with GROUP_ID_NOT_FOUND.
    other_protocol = (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_ID_NOT_FOUND)
    answers = {}
    for key, future in futures.items():
        try:
            answers[key] = future.result()
        except CoordinatorError as error:
            if error.error_code not in other_protocol:
                raise
    return answers


def _split(offsets: Mapping[TopicPartition, int]) -> Iterator[dict[TopicPartition, int]]:
    """Yield parts of the offsets, each for one OffsetCommit."""
    ordered = sorted(offsets.items())
    for first in range(0, len(ordered), _COMMIT_MAX_PARTITIONS):
        yield dict(ordered[first : first + _COMMIT_MAX_PARTITIONS])


def _commit_errors(partitions: Iterable[TopicPartition], answer: OffsetCommitResponse) -> PartitionErrors:
    """Return the error code of each partition of an OffsetCommit. An error of the whole request is theirs."""
    if answer.error_code is not ErrorCode.NONE:
        return dict.fromkeys(partitions, answer.error_code)
    return _error_codes(answer.topics)


def _error_codes(topics: Iterable[TopicErrors]) -> PartitionErrors:
    """Return the error code of each partition in a response."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in topics
        for partition in topic.partitions
    }
