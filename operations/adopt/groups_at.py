"""Groups of a coordinator, read over Kafka's protocol, and the decision about each group whose offsets move
to another coordinator. This project's coordinator is read through a gateway.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from kafka.errors import KafkaError as KafkaPythonError

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.errors import UserFacingError

# Other types of groups have no offsets that OffsetCommit sets (KIP-932, KIP-1071).
_WITH_OFFSETS = ("classic", "consumer")


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """A committed offset."""

    offset: int
    leader_epoch: int | None  # None if the committer sent none
    metadata: str


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group that was read from one of the coordinators."""

    group_id: str
    kind: str = ""  # Kafka's group type in lower case
    state: str = ""
    members: int = 0
    offsets: Mapping[TopicPartition, CommittedPosition] = field(default_factory=dict)
    error: str = ""  # why the group or its offsets cannot be read, or ""


class AdoptDecision(StrEnum):
    """The decision about a group."""

    MOVE = "move"
    """Its offsets are to be committed at the other coordinator."""
    MOVED = "moved"
    """The other coordinator has its offsets now."""
    SAME = "same"
    """The other coordinator already has these offsets."""
    EMPTY = "no offsets"
    """There is nothing to move."""
    REFUSED = "refused"
    """The reason says what has to be done first."""


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    """A group, the decision about it, and the offsets to commit."""

    group: FoundGroup
    outcome: AdoptDecision
    reason: str = ""
    # The offsets to commit: they are missing or different at the target.
    offsets: Mapping[TopicPartition, CommittedPosition] = field(default_factory=dict)


def plan(group: FoundGroup, at_target: FoundGroup | None, *, overwrite: bool) -> AdoptPlan:
    """Decide about a group. `at_target` is the same group at the target coordinator, if it exists.

    A group with members at either coordinator is refused, because the members commit to that coordinator.
    Different offsets at the target are replaced only with `overwrite`.
    """
    for side in (group, at_target):
        if side is not None and side.error:
            return AdoptPlan(group, AdoptDecision.REFUSED, side.error)
    if group.kind not in _WITH_OFFSETS:
        return AdoptPlan(group, AdoptDecision.REFUSED, f"is a {group.kind} group")
    if group.members:
        return AdoptPlan(group, AdoptDecision.REFUSED, f"has {group.members} members: stop them first")
    if at_target is not None and at_target.members:
        return AdoptPlan(
            group, AdoptDecision.REFUSED, f"has {at_target.members} members at the other coordinator"
        )
    if not group.offsets:
        return AdoptPlan(group, AdoptDecision.EMPTY)
    existing = {} if at_target is None else at_target.offsets
    to_commit = {p: position for p, position in group.offsets.items() if existing.get(p) != position}
    if not to_commit:
        return AdoptPlan(group, AdoptDecision.SAME)
    replaced = sum(1 for partition in to_commit if partition in existing)
    if replaced and not overwrite:
        return AdoptPlan(
            group,
            AdoptDecision.REFUSED,
            f"the other coordinator has other offsets of {replaced} partitions: see --overwrite",
            to_commit,
        )
    return AdoptPlan(group, AdoptDecision.MOVE, offsets=to_commit)


# Maximum number of groups described in one request. Their offsets are requested concurrently.
_MAX_DESCRIBED = 100
# Maximum number of retries of a request, each because librdkafka has dropped the handle of its server.
_MAX_RETRIES = 3


class AdoptError(UserFacingError):
    """The error when the groups of a coordinator cannot be read, or their offsets cannot be committed."""


class GroupAdmin:
    """A client of one coordinator that reads and commits the offsets of groups. Methods raise AdoptError.

    `timeout_s` limits each request.
    """

    def __init__(self, client_config: ClientConfig, timeout_s: float) -> None:
        self._client_config = client_config
        self._timeout_s = timeout_s
        self._admin = kafka_clients.librdkafka_admin(client_config)

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster. A gateway returns its cluster's id."""
        cluster = self._await_result(lambda: self._admin.describe_cluster(request_timeout=self._timeout_s))
        return str(cluster.cluster_id)

    def ids(self) -> list[str]:
        """Return the ids of all groups, in alphabetical order."""
        listing = self._await_result(
            lambda: self._admin.list_consumer_groups(request_timeout=self._timeout_s)
        )
        if listing.errors:
            raise AdoptError(f"{self._client_config} does not list all groups: {listing.errors[0]}")
        return sorted(group.group_id for group in listing.valid)

    def read(self, group_ids: Iterable[str]) -> dict[str, FoundGroup]:
        """Return the groups of these ids that exist, with their offsets.

        A group that cannot be read has an `error`. Offsets that a transaction may still change are an error,
        not an older value (KIP-447).
        """
        ids = list(group_ids)
        groups: dict[str, FoundGroup] = {}
        for first in range(0, len(ids), _MAX_DESCRIBED):
            groups |= self._read_concurrently(ids[first : first + _MAX_DESCRIBED])
        return groups

    def _read_concurrently(self, ids: list[str]) -> dict[str, FoundGroup]:
        """Return these groups, as `read`. There are at most `_MAX_DESCRIBED`."""
        groups: dict[str, FoundGroup] = {}
        # The offsets of all groups are requested before the first response with offsets is awaited. By group
        # id, the described group and the future of its offsets.
        described: dict[str, tuple[Any, Future[Any]]] = {}
        for group_id, future in self._request_descriptions(ids).items():
            try:
                group = self._await_description(group_id, future)
            except AdoptError as error:
                groups[group_id] = FoundGroup(group_id, error=str(error))
            else:
                if group is not None:
                    described[group_id] = group, self._request_offsets(group_id)
        for group_id, (group, future) in described.items():
            groups[group_id] = self._await_group(group_id, group, future)
        return groups

    def _await_group(self, group_id: str, group: Any, offsets: Future[Any]) -> FoundGroup:
        """Return a described group with its offsets, or with an error if they cannot be read."""
        kind = group.type.name.lower()
        state = group.state.name.replace("_", " ").title().replace(" ", "")  # such as PreparingRebalance
        try:
            committed = self._await_offsets(group_id, offsets)
        except AdoptError as error:
            return FoundGroup(group_id, kind, state, len(group.members), error=str(error))
        return FoundGroup(group_id, kind, state, len(group.members), committed)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedPosition]
    ) -> dict[TopicPartition, str]:
        """Commit these offsets in no member's name. Return Kafka's error for each partition that has one."""
        # Not by librdkafka's admin client, which adds a zero byte to the metadata.
        to_commit = {
            kafka.TopicPartition(*partition): kafka.OffsetAndMetadata(
                position.offset, position.metadata, position.leader_epoch
            )
            for partition, position in offsets.items()
        }
        try:
            with closing(
                kafka_clients.admin(self._client_config, request_timeout_ms=round(self._timeout_s * 1000))
            ) as admin:
                errors = admin.alter_group_offsets(group_id, to_commit)
        except KafkaPythonError as error:
            raise AdoptError(f"{self._client_config}: {error}") from error
        return {
            TopicPartition(partition.topic, partition.partition): error_type.__name__
            for partition, error_type in errors.items()
            if error_type.errno  # 0 is NoError
        }

    def _request_descriptions(self, group_ids: list[str]) -> dict[str, Future[Any]]:
        """Request the descriptions of groups. Return their futures by group id."""
        futures: dict[str, Future[Any]] = self._admin.describe_consumer_groups(
            group_ids, request_timeout=self._timeout_s
        )
        return futures

    def _await_description(self, group_id: str, future: Future[Any]) -> Any:
        """Return the group's description, or None if it does not exist."""
        try:
            group = _with_retries(lambda: self._request_descriptions([group_id])[group_id], future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise AdoptError(f"{self._client_config}: {error.args[0].str()}") from error
        return None if group.state.name == "DEAD" else group

    def _request_offsets(self, group_id: str) -> Future[Any]:
        groups = [ConsumerGroupTopicPartitions(group_id)]  # librdkafka accepts one group per call
        futures = self._admin.list_consumer_group_offsets(
            groups, require_stable=True, request_timeout=self._timeout_s
        )
        future: Future[Any] = futures[group_id]
        return future

    def _await_offsets(self, group_id: str, future: Future[Any]) -> dict[TopicPartition, CommittedPosition]:
        """Return the group's committed offsets. Raises AdoptError if one of them cannot be read."""
        answer = self._await_result(lambda: self._request_offsets(group_id), future)
        offsets = {}
        for committed in answer.topic_partitions:
            partition = TopicPartition(committed.topic, committed.partition)
            if committed.error is not None:
                name = f"{committed.topic}-{committed.partition}"
                raise AdoptError(
                    f"group {group_id}, {name} on {self._client_config}: {committed.error.str()}"
                )
            if committed.offset >= 0:  # a negative offset means that none is committed
                offsets[partition] = CommittedPosition(
                    committed.offset, committed.leader_epoch, committed.metadata or ""
                )
        return offsets

    def _await_result(self, send: Callable[[], Future[Any]], sent: Future[Any] | None = None) -> Any:
        """Return the response as `_with_retries`, with AdoptError instead of KafkaException."""
        try:
            return _with_retries(send, sent)
        except KafkaException as error:
            raise AdoptError(f"{self._client_config}: {error.args[0].str()}") from error


def _with_retries(send: Callable[[], Future[Any]], sent: Future[Any] | None = None) -> Any:
    """Return the response to the request that `send` sends. `sent` is its future if it is sent already."""
    # librdkafka drops the handle of a bootstrap server once it knows the cluster's brokers. Requests on it
    # then fail.
    for _ in range(_MAX_RETRIES):
        try:
            return (sent or send()).result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._DESTROY:
                raise
            sent = None  # send it again
    return send().result()
