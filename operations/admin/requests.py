"""An administrator's requests to the coordinator; requests for several groups are sent concurrently.

A request that changes a group waits for the batch that writes the change to the topics, so that a command
that follows finds the change there. Every method raises a `ClientError` of `clients.pending` if a response
does not arrive in time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from clients.coordinator_client import CoordinatorClient, wait_for_views
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

# The versions of Kafka's messages that these requests correspond to. Source: *Request.json of Apache Kafka 4.
_DescribeRequest = type[DescribeGroup | ConsumerGroupDescribe | ShareGroupDescribe | StreamsGroupDescribe]
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

_REASON = "member was removed by an admin"
_REASON_MAX_CHARS = 255

_NO_IDS: Mapping[str, UUID] = MappingProxyType({})

PartitionErrors = dict[TopicPartition, ErrorCode]
Removed = tuple[ErrorCode, list[ErrorCode]]
"""The outcome of a removal for the group, and for each member in order."""


class GroupRequests:
    """An administrator's requests, sent through a client. They raise if no response comes in time."""

    def __init__(self, client: CoordinatorClient) -> None:
        self._client = client

    def wait_for_views(self) -> None:
        """Wait until the topics have every change that was answered before this call."""
        wait_for_views(self._client)

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the groups and, if wanted, fetch the offsets of all their partitions.

        If a group's type is unknown or has changed, requests for all types are sent. A group that cannot be
        described is returned as its error code. Groups that are not Kafka's are omitted.
        """
        send, header = self._client.send, self._client.header
        sent = {
            (name, of): send(request(**header(name, version)))
            for name, known in groups.items()
            for of, (request, version) in _DESCRIBE.items()
            if known in (of, None)
        }
        fetched = {
            name: send(OffsetFetch(**header(name, FETCH_VERSION)))
            for name in (groups if with_offsets else ())
        }
        answers: dict[str, AnyDescription] = {
            name: answer
            for (name, _), answer in _accepted(sent).items()
            if answer.error_code is not ErrorCode.GROUP_ID_NOT_FOUND
        }
        described: Answers = {
            name: snapshot_of(answer) if answer.error_code is ErrorCode.NONE else answer.error_code
            for name, answer in answers.items()
        }
        there = {name for name, answer in answers.items() if answer.group_state != DEAD}
        changed = dict.fromkeys(name for name, known in groups.items() if known and name not in there)
        if changed:
            described |= self.describe(changed)[0]
        return described, {
            name: offsets_of(answer, answers.get(name)) for name, answer in _accepted(fetched).items()
        }

    def commit_offsets(
        self, offsets: Mapping[str, Mapping[TopicPartition, int]], topic_ids: Mapping[str, UUID] = _NO_IDS
    ) -> dict[str, PartitionErrors]:
        """Send OffsetCommit with these offsets of each group. Return each outcome.

        The request names no member, so the coordinator accepts it only for a group without members. A topic
        that is not in `topic_ids` keeps the id of the replaced offset. More than 10,000 partitions are split
        among several requests, some of which may fail.
        """
        sent = [
            (group_id, some, self._commit(group_id, some, topic_ids))
            for group_id, of_group in offsets.items()
            for some in _parts(of_group)
        ]
        # A request without offsets would create an empty group.
        errors: dict[str, PartitionErrors] = {group_id: {} for group_id in offsets}
        for group_id, some, future in sent:
            errors[group_id] |= _commit_errors(some, future.result())
        return errors

    def _commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, UUID]
    ) -> Future[OffsetCommitResponse]:
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
        """Send DeleteGroups. Return the outcome of each group."""
        header = self._client.header
        answers = self._send(
            {name: DeleteGroup(**header(name, DELETE_VERSION), waits_for_views=True) for name in group_ids}
        )
        return {name: answer.error_code for name, answer in answers.items()}

    def delete_offsets(
        self, group_ids: Iterable[str], partitions: Iterable[TopicPartition]
    ) -> dict[str, tuple[ErrorCode, PartitionErrors]]:
        """Send OffsetDelete for these partitions of each group.

        Return the group's outcome and, if it is NONE, each partition's.
        """
        header = self._client.header
        topics = [TopicPartitions(topic, numbers) for topic, numbers in by_topic(partitions).items()]
        answers = self._send(
            {
                name: OffsetDelete(**header(name, OFFSET_DELETE_VERSION), waits_for_views=True, topics=topics)
                for name in group_ids
            }
        )
        return {name: (answer.error_code, _errors(answer.topics)) for name, answer in answers.items()}

    def remove_members(
        self, members: Mapping[str, Sequence[LeavingMember]], reason: str | None
    ) -> dict[str, Removed]:
        """Send LeaveGroup for the members of each group. Return the outcomes.

        The form of the reason is that of KafkaAdminClient.removeMembersFromConsumerGroup (KIP-800).
        """
        full_reason = (f"{_REASON}: {reason}" if reason else _REASON)[:_REASON_MAX_CHARS]
        header = self._client.header
        answers = self._send(
            {
                name: LeaveGroup(
                    **header(name, LEAVE_VERSION),
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

        The code is NONE, too, if the group is not quarantined or does not exist.
        """
        header = self._client.header
        answers = self._send({name: ReleaseGroup(**header(name), waits_for_views=True) for name in group_ids})
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
        """Return a marker that aborts this transaction at the position at which it is pending."""
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
        """Send a request for each group, all at once."""
        pending = {name: self._client.send(request) for name, request in requests.items()}
        return {name: future.result() for name, future in pending.items()}


class ReadOnly(ClientError):
    """The error of a change to groups of the cluster's own coordinator, which are read only."""


class ObservedGroups(TopicGroupDescriber, GroupRequests):
    """Descriptions of groups of the cluster's own coordinator, from an observer's topics.

    Requests that change a group raise ReadOnly.
    """

    @property
    def _client(self) -> CoordinatorClient:  # type: ignore[override]
        raise ReadOnly(
            f"groups of the cluster's own coordinator are read only here ({self._topics[1].groups_topic} is "
            "an observer's topic): change them with kafka-consumer-groups"
        )

    def wait_for_views(self) -> None:
        """Do not wait: the topics have what the observer has read so far."""


def _accepted(pending: Mapping[K, Future[R]]) -> dict[K, R]:
    """Return the responses, without refusals because the group is of another protocol."""
    # The second is from ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe.
    other_protocol = (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_ID_NOT_FOUND)
    answers = {}
    for key, future in pending.items():
        try:
            answers[key] = future.result()
        except CoordinatorError as error:
            if error.error_code not in other_protocol:
                raise
    return answers


def _parts(offsets: Mapping[TopicPartition, int]) -> Iterator[dict[TopicPartition, int]]:
    ordered = sorted(offsets.items())
    for first in range(0, len(ordered), _COMMIT_MAX_PARTITIONS):
        yield dict(ordered[first : first + _COMMIT_MAX_PARTITIONS])


def _commit_errors(offsets: Iterable[TopicPartition], answer: OffsetCommitResponse) -> PartitionErrors:
    if answer.error_code is not ErrorCode.NONE:
        return dict.fromkeys(offsets, answer.error_code)
    return _errors(answer.topics)


def _errors(topics: Iterable[TopicErrors]) -> PartitionErrors:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in topics
        for partition in topic.partitions
    }
