"""Groups at a coordinator over Kafka's protocol (a gateway is this project's coordinator here), and the
decision about each group whose offsets move to another coordinator.
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
    """The decision about a group."""

    group: FoundGroup
    outcome: AdoptDecision
    reason: str = ""
    # The offsets to commit: they are missing or different at the target.
    offsets: Mapping[TopicPartition, CommittedPosition] = field(default_factory=dict)


def plan(group: FoundGroup, at_target: FoundGroup | None, *, overwrite: bool) -> AdoptPlan:
    """Decide about a group. `at_target` is the same group at the target coordinator, if it exists.

    It may have members at neither coordinator, because they would commit to the one that they know. Different
    offsets at the target are replaced only with `overwrite`.
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
    known = {} if at_target is None else at_target.offsets
    missing = {partition: at for partition, at in group.offsets.items() if known.get(partition) != at}
    if not missing:
        return AdoptPlan(group, AdoptDecision.SAME)
    others = sum(1 for partition in missing if partition in known)
    if others and not overwrite:
        return AdoptPlan(
            group,
            AdoptDecision.REFUSED,
            f"the other coordinator has other offsets of {others} partitions: see --overwrite",
            missing,
        )
    return AdoptPlan(group, AdoptDecision.MOVE, offsets=missing)


# Maximum number of groups described in one request. Their offsets are requested concurrently.
_MAX_DESCRIBED = 100
# Maximum number of retries of a request, each because librdkafka has dropped the handle of its server.
_MAX_RETRIES = 3


class AdoptError(RuntimeError):
    """The error when the groups of a coordinator cannot be read."""


class GroupAdmin:
    """A client of one coordinator that reads and commits the offsets of groups. Methods raise AdoptError.

    `timeout_s` limits each request.
    """

    def __init__(self, client_config: ClientConfig, timeout_s: float) -> None:
        self._at = client_config
        self._timeout_s = timeout_s
        self._admin = kafka_clients.librdkafka_admin(client_config)

    def cluster_id(self) -> str:
        """Return the id of the Kafka cluster. A gateway passes it on."""
        found = self._result(lambda: self._admin.describe_cluster(request_timeout=self._timeout_s))
        return str(found.cluster_id)

    def ids(self) -> list[str]:
        """Return the ids of all groups, in alphabetical order."""
        found = self._result(lambda: self._admin.list_consumer_groups(request_timeout=self._timeout_s))
        if found.errors:
            raise AdoptError(f"{self._at} does not list all groups: {found.errors[0]}")
        return sorted(group.group_id for group in found.valid)

    def read(self, group_ids: Iterable[str]) -> dict[str, FoundGroup]:
        """Return those of these groups that exist, with their offsets.

        A group that cannot be read has an `error`. Offsets that a transaction may still change are an error,
        not an older value (KIP-447).
        """
        ids = list(group_ids)
        found: dict[str, FoundGroup] = {}
        for first in range(0, len(ids), _MAX_DESCRIBED):
            found |= self._read_together(ids[first : first + _MAX_DESCRIBED])
        return found

    def _read_together(self, ids: list[str]) -> dict[str, FoundGroup]:
        found: dict[str, FoundGroup] = {}
        # All are requested before the first answer is waited for.
        requested: dict[str, tuple[Any, Future[Any]]] = {}
        for group_id, future in self._request(ids).items():
            try:
                group = self._described(group_id, future)
            except AdoptError as error:
                found[group_id] = FoundGroup(group_id, error=str(error))
            else:
                if group is not None:
                    requested[group_id] = group, self._request_offsets(group_id)
        for group_id, (group, future) in requested.items():
            found[group_id] = self._found(group_id, group, future)
        return found

    def _found(self, group_id: str, group: Any, offsets: Future[Any]) -> FoundGroup:
        kind, state = group.type.name.lower(), group.state.name.replace("_", " ").title().replace(" ", "")
        try:
            committed = self._offsets(group_id, offsets)
        except AdoptError as error:
            return FoundGroup(group_id, kind, state, len(group.members), error=str(error))
        return FoundGroup(group_id, kind, state, len(group.members), committed)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedPosition]
    ) -> dict[TopicPartition, str]:
        """Commit these offsets without a member. Return Kafka's error for each partition that has one."""
        # Not by librdkafka's admin client, which adds a zero byte to the metadata.
        wanted = {
            kafka.TopicPartition(*partition): kafka.OffsetAndMetadata(at.offset, at.metadata, at.leader_epoch)
            for partition, at in offsets.items()
        }
        try:
            with closing(
                kafka_clients.admin(self._at, request_timeout_ms=round(self._timeout_s * 1000))
            ) as admin:
                outcome = admin.alter_group_offsets(group_id, wanted)
        except KafkaPythonError as error:
            raise AdoptError(f"{self._at}: {error}") from error
        return {
            TopicPartition(partition.topic, partition.partition): kind.__name__
            for partition, kind in outcome.items()
            if kind.errno
        }

    def _request(self, group_ids: list[str]) -> dict[str, Future[Any]]:
        futures: dict[str, Future[Any]] = self._admin.describe_consumer_groups(
            group_ids, request_timeout=self._timeout_s
        )
        return futures

    def _described(self, group_id: str, future: Future[Any]) -> Any:
        """Return the group's description, or None if it does not exist."""
        try:
            group = _with_retries(lambda: self._request([group_id])[group_id], future)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise AdoptError(f"{self._at}: {error.args[0].str()}") from error
        return None if group.state.name == "DEAD" else group

    def _request_offsets(self, group_id: str) -> Future[Any]:
        groups = [ConsumerGroupTopicPartitions(group_id)]  # librdkafka accepts one group per call
        futures = self._admin.list_consumer_group_offsets(
            groups, require_stable=True, request_timeout=self._timeout_s
        )
        future: Future[Any] = futures[group_id]
        return future

    def _offsets(self, group_id: str, future: Future[Any]) -> dict[TopicPartition, CommittedPosition]:
        answer = self._result(lambda: self._request_offsets(group_id), future)
        offsets = {}
        for found in answer.topic_partitions:
            if found.error is not None:
                where = f"{found.topic}-{found.partition}"
                raise AdoptError(f"group {group_id}, {where} on {self._at}: {found.error.str()}")
            if found.offset >= 0:
                at = CommittedPosition(found.offset, found.leader_epoch, found.metadata or "")
                offsets[TopicPartition(found.topic, found.partition)] = at
        return offsets

    def _result(self, send: Callable[[], Future[Any]], sent: Future[Any] | None = None) -> Any:
        try:
            return _with_retries(send, sent)
        except KafkaException as error:
            raise AdoptError(f"{self._at}: {error.args[0].str()}") from error


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
            sent = None
    return send().result()
