"""The admin clients of two libraries behind one interface, for groups. Errors are Kafka's codes."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition, errors

from kafka_why.contract.messages import ErrorCode

TIMEOUT_S = 60.0


class PythonAdmin:
    """kafka-python's admin client."""

    def __init__(self, servers: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def states(self) -> dict[str, str]:
        """Return the state of every group."""
        return {group["group_id"]: group["group_state"].upper() for group in self._client.list_groups()}

    def describe(self, group_id: str) -> tuple[str, int]:
        """Return the group's state, and its number of members."""
        described = self._client.describe_groups([group_id])[group_id]
        return described["group_state"].upper(), len(described["members"])

    def delete(self, group_id: str) -> ErrorCode:
        outcome = self._client.delete_groups([group_id])[group_id]
        return ErrorCode.NONE if outcome == "OK" else ErrorCode(getattr(errors, outcome).errno)

    def offsets(self, group_id: str) -> dict[int, int]:
        """Return the committed offsets by partition. The tests have one topic a group."""
        listed = self._client.list_group_offsets(group_id)[group_id]
        return {partition.partition: found.offset for partition, found in listed.items()}

    def alter_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> set[ErrorCode]:
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(at, "", -1) for p, at in offsets.items()}
        return _codes(self._client.alter_group_offsets(group_id, wanted))

    def delete_offsets(self, group_id: str, topic: str, *partitions: int) -> set[ErrorCode]:
        return _codes(
            self._client.delete_group_offsets(group_id, [TopicPartition(topic, p) for p in partitions])
        )


class ConfluentAdmin:
    """librdkafka's admin client. Its Python binding cannot delete offsets."""

    def __init__(self, servers: str) -> None:
        self._client = AdminClient({"bootstrap.servers": servers})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""

    def states(self) -> dict[str, str]:
        listed = self._client.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        assert not listed.errors, listed.errors
        return {group.group_id: group.state.name for group in listed.valid}

    def describe(self, group_id: str) -> tuple[str, int]:
        described = self._client.describe_consumer_groups([group_id])[group_id].result(TIMEOUT_S)
        return described.state.name, len(described.members)

    def delete(self, group_id: str) -> ErrorCode:
        return _code(self._client.delete_consumer_groups([group_id])[group_id])

    def offsets(self, group_id: str) -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group_id)]
        listed = self._client.list_consumer_group_offsets(asked)[group_id].result(TIMEOUT_S)
        return {partition.partition: partition.offset for partition in listed.topic_partitions}

    def alter_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> set[ErrorCode]:
        wanted = [ConfluentPartition(topic, p, at) for p, at in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group_id, wanted)]
        try:
            altered = self._client.alter_consumer_group_offsets(asked)[group_id].result(TIMEOUT_S)
        except KafkaException as error:
            return {ErrorCode(error.args[0].code())}
        return {ErrorCode(p.error.code() if p.error else 0) for p in altered.topic_partitions}


def _code(done: Future[Any]) -> ErrorCode:
    error = done.exception(TIMEOUT_S)
    if error is None:
        return ErrorCode.NONE
    assert isinstance(error, KafkaException), error
    return ErrorCode(error.args[0].code())


def _codes(outcomes: Mapping[TopicPartition, type[errors.KafkaError]]) -> set[ErrorCode]:
    return {ErrorCode(outcome.errno) for outcome in outcomes.values()}
