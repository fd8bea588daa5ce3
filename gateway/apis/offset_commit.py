"""OffsetCommit (key 8) and OffsetDelete (47, KIP-496). The gateway refuses unknown partitions, and the
coordinator decides about the rest. The coordinator gets an OffsetDelete even if no partition remains, because
the error of an unknown group takes precedence over those of unknown partitions.

A request may have many partitions, so the work is done in steps (`gateway.apis.slices`).
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import GROUP_REFUSED, Api, may_delete_group, may_read_group, may_read_topic
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.slices import Slices, Steps, at_once, batches
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, Codes, NamedTopic, Outcomes, look_up, look_up_at_once
from gateway.authorization.acls import Operation
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    OffsetDelete,
    TopicPartitions,
)
from kafka_why.contract.kafka.responses import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    PartitionError,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.messages import ErrorCode

Answer = OffsetCommitResponse | OffsetDeleteResponse | TxnOffsetCommitResponse


class ValidPartitions:
    """The valid partitions of a request, and the errors of the others.

    `outcomes` has the errors of the other partitions, and after the coordinator's answer those of all
    partitions. `committed` has the valid partitions in the coordinator's form.
    """

    def __init__(self) -> None:
        self.topics: list[tuple[NamedTopic, list[Any]]] = []
        self.outcomes = Outcomes()
        self.committed: list[CommittedTopic] = []

    def separate(self, context: RequestContext, request: Any, topics: Sequence[NamedTopic]) -> Steps:
        """Separate the valid partitions from the others. `topics` are those of the request, with metadata."""
        for named, topic in zip(topics, request.topics, strict=True):
            name = named.name if named.topic is None else named.topic.name
            if (name or not named.by_id) and not may_read_topic(context, name):
                indexes = (p.partition_index for p in topic.partitions)
                self.outcomes.add_all(named, indexes, GatewayError.TOPIC_AUTHORIZATION_FAILED)
                yield
                continue
            existing: list[Any] = []
            for some in batches(topic.partitions):
                valid = [p for p in some if named.has(p.partition_index)]
                if len(valid) < len(some):
                    indexes = (p.partition_index for p in some if not named.has(p.partition_index))
                    self.outcomes.add_all(named, indexes, named.missing_error)
                existing += valid
                yield
            if existing:
                self.topics.append((named, existing))

    def encode(self) -> Steps:
        """Build `committed` from `topics`."""
        for named, partitions in self.topics:
            assert named.topic is not None
            committed: list[CommittedPartition] = []
            for some in batches(partitions):
                committed += map(_committed_partition, some)
                yield
            self.committed.append(CommittedTopic(named.topic.name, committed, named.topic.topic_id))

    def fields(self, answer: Answer) -> Fields:
        """Add the coordinator's answer, and return the errors of all partitions."""
        at_once(self._merge(answer))
        return self.all_fields(answer)

    async def merge(self, slices: Slices, answer: Awaitable[Answer]) -> Answer:
        """Wait for the coordinator's answer, and add its outcomes for `all_fields`. Return the answer."""
        answered = await answer
        await slices.run(self._merge(answered))
        return answered

    def all_fields(self, answer: Answer) -> Fields:
        """Return the errors of all partitions, after `merge`."""
        return {"topics": self.outcomes.fields()}

    async def refuse(self, slices: Slices, error: Codes) -> Fields:
        """Refuse the valid partitions with this error. Return the errors of all partitions."""
        await slices.run(_refuse(self.outcomes, self.topics, error))
        return {"topics": self.outcomes.fields()}

    def _merge(self, answer: Answer) -> Steps:
        if answer.error_code is ErrorCode.NONE:
            outcomes = ((n, t.partitions) for (n, _), t in zip(self.topics, answer.topics, strict=True))
            return self.outcomes.merge(outcomes)
        error = answer.error_code
        return self.outcomes.merge(
            (named, [PartitionError(p.partition_index, error) for p in partitions])
            for named, partitions in self.topics
        )


def refused_at_once(request: Any, error: Codes, *, by_id: bool) -> Fields:
    """Return the same error for all partitions of a request."""
    outcomes = Outcomes()
    at_once(_refuse(outcomes, _requested(request, by_id=by_id), error))
    return {"topics": outcomes.fields()}


async def refused(context: RequestContext, request: Any, error: Codes, *, by_id: bool) -> Fields:
    """Return the result of `refused_at_once`, built in slices."""
    outcomes = Outcomes()
    await context.slices().run(_refuse(outcomes, _requested(request, by_id=by_id), error))
    return {"topics": outcomes.fields()}


def _requested(request: Any, *, by_id: bool) -> Iterator[tuple[NamedTopic, list[Any]]]:
    for topic in request.topics:
        named = NamedTopic("", topic.topic_id, None) if by_id else NamedTopic(topic.name, None, None)
        yield named, topic.partitions


def _refuse(outcomes: Outcomes, topics: Iterable[tuple[NamedTopic, list[Any]]], error: Codes) -> Steps:
    for named, partitions in topics:
        for some in batches(partitions):
            outcomes.add_all(named, (p.partition_index for p in some), error)
            yield


def _committed_partition(partition: Any) -> CommittedPartition:
    return CommittedPartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata,
    )


async def serve_commit(context: RequestContext, request: Any) -> Fields | Deferred:
    """Commit the offsets of the existing partitions."""
    by_id = _is_by_id(context)
    if not may_read_group(context, request.group_id):
        return await refused(context, request, GatewayError.GROUP_AUTHORIZATION_FAILED, by_id=by_id)
    topics = await look_up(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return await refused(context, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, by_id=by_id)
    slices, valid = context.slices(), ValidPartitions()
    await slices.run(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.fields()}
    await slices.run(valid.encode())
    merged = valid.merge(slices, _commit(context, request, valid))
    return Deferred(asyncio.create_task(merged), valid.all_fields)


def serve_commit_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer a small request as `serve_commit` does, or return None if topics have to be looked up at a
    broker.
    """
    by_id = _is_by_id(context)
    if not may_read_group(context, request.group_id):
        return refused_at_once(request, GatewayError.GROUP_AUTHORIZATION_FAILED, by_id=by_id)
    topics = look_up_at_once(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return None
    valid = ValidPartitions()
    at_once(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.fields()}
    at_once(valid.encode())
    return Deferred(_commit(context, request, valid), valid.fields)


def _is_by_id(context: RequestContext) -> bool:
    return context.version >= FIRST_VERSION_WITH_IDS


def _commit(context: RequestContext, request: Any, valid: ValidPartitions) -> Future[OffsetCommitResponse]:
    return context.send(
        OffsetCommit(
            **context.coordinator_header(request.group_id),
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=valid.committed,
        )
    )


def _error_code(answer: OffsetCommitResponse) -> int:
    # If the commit is refused, all partitions have the same error.
    if not answer.error_code and answer.topics:
        return answer.topics[0].partitions[0].error_code
    return answer.error_code


OFFSET_COMMIT = Api(
    key=ApiKey.OffsetCommit, serve=serve_commit, serve_at_once=serve_commit_at_once, error_code=_error_code
)


_PARTITION_INDEX = attrgetter("partition_index")


async def serve_deletion(context: RequestContext, request: Any) -> Fields | Deferred:
    """Delete the offsets of the existing partitions."""
    if not may_delete_group(context, request.group_id):
        return GROUP_REFUSED
    topics = await look_up(context, request.topics, Operation.READ, by_id=False)
    if topics is None:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    slices, valid = context.slices(), ValidPartitions()
    await slices.run(valid.separate(context, request, topics))
    response = context.send(
        OffsetDelete(
            **context.coordinator_header(request.group_id),
            topics=[
                TopicPartitions(named.name, await slices.each(_PARTITION_INDEX, partitions))
                for named, partitions in valid.topics
            ],
        ),
        ANSWER_TIMEOUT_MS,
    )
    return Deferred(asyncio.create_task(valid.merge(slices, response)), partial(_deletion_fields, valid))


def _deletion_fields(valid: ValidPartitions, answer: OffsetDeleteResponse) -> Fields:
    if answer.error_code is not ErrorCode.NONE:
        return {"error_code": answer.error_code}
    return {"error_code": ErrorCode.NONE, **valid.all_fields(answer)}


OFFSET_DELETE = Api(key=ApiKey.OffsetDelete, serve=serve_deletion)
