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
from gateway.apis.slices import Slices, Steps, batches, run_at_once
from gateway.apis.topics import (
    FIRST_VERSION_WITH_IDS,
    Codes,
    Outcomes,
    RequestedTopic,
    look_up,
    look_up_at_once,
)
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
    """The valid partitions of a request, and the errors of the others. A partition is valid if it exists and
    the client may read its topic.
    """

    def __init__(self) -> None:
        self.topics: list[tuple[RequestedTopic, list[Any]]] = []
        """The topics with valid partitions, and these partitions as they are in the client's request."""
        self.outcomes = Outcomes()
        """The errors of the invalid partitions. After the coordinator's answer, the outcomes of all."""
        self.committed: list[CommittedTopic] = []
        """`topics` as the coordinator's request has them, built by `encode`."""

    def separate(self, context: RequestContext, request: Any, topics: Sequence[RequestedTopic]) -> Steps:
        """Separate the valid partitions from the others. `topics` has the request's topics in the same order,
        with their metadata.
        """
        for requested, topic in zip(topics, request.topics, strict=True):
            name = requested.name if requested.topic is None else requested.topic.name
            is_unknown_id = requested.by_id and not name
            # An unknown id has no name to check. Its partitions get `missing_error`.
            if not is_unknown_id and not may_read_topic(context, name):
                indexes = (p.partition_index for p in topic.partitions)
                self.outcomes.add_all(requested, indexes, GatewayError.TOPIC_AUTHORIZATION_FAILED)
                yield
                continue
            existing: list[Any] = []
            for batch in batches(topic.partitions):
                existing_in_batch = [p for p in batch if requested.has(p.partition_index)]
                if len(existing_in_batch) < len(batch):
                    indexes = (p.partition_index for p in batch if not requested.has(p.partition_index))
                    self.outcomes.add_all(requested, indexes, requested.missing_error)
                existing += existing_in_batch
                yield
            if existing:
                self.topics.append((requested, existing))

    def encode(self) -> Steps:
        """Build `committed` from `topics`."""
        for requested, partitions in self.topics:
            assert requested.topic is not None, "it has valid partitions"
            committed: list[CommittedPartition] = []
            for batch in batches(partitions):
                committed += map(_committed_partition, batch)
                yield
            self.committed.append(CommittedTopic(requested.topic.name, committed, requested.topic.topic_id))

    def merge_at_once(self, answer: Answer) -> Fields:
        """Add the coordinator's outcomes. Return the errors of all partitions."""
        run_at_once(self._merge_steps(answer))
        return self.merged_fields(answer)

    async def merge(self, slices: Slices, response: Awaitable[Answer]) -> Answer:
        """Wait for the coordinator's answer, and add its outcomes in slices. Return the answer."""
        answer = await response
        await slices.run(self._merge_steps(answer))
        return answer

    def merged_fields(self, answer: Answer) -> Fields:
        """Return the errors of all partitions, to which `merge` has added the coordinator's. `answer` is not
        used: it is what `merge` returns, and a `Deferred` passes it.
        """
        return {"topics": self.outcomes.topics}

    async def refuse(self, slices: Slices, error: Codes) -> Fields:
        """Refuse the valid partitions with this error. Return the errors of all partitions."""
        await slices.run(_refusal_steps(self.outcomes, self.topics, error))
        return {"topics": self.outcomes.topics}

    def _merge_steps(self, answer: Answer) -> Steps:
        """Add the coordinator's outcomes. An error of the whole request applies to each valid partition."""
        if answer.error_code is ErrorCode.NONE:
            return self.outcomes.merge(
                (requested, answered.partitions)
                for (requested, _), answered in zip(self.topics, answer.topics, strict=True)
            )
        error = answer.error_code
        return self.outcomes.merge(
            (requested, [PartitionError(p.partition_index, error) for p in partitions])
            for requested, partitions in self.topics
        )


async def refuse_all(context: RequestContext, request: Any, error: Codes, *, by_id: bool) -> Fields:
    """Return the same error for all partitions of a request, built in slices."""
    outcomes = Outcomes()
    await context.slices().run(_refusal_steps(outcomes, _requested(request, by_id=by_id), error))
    return {"topics": outcomes.topics}


def _requested(request: Any, *, by_id: bool) -> Iterator[tuple[RequestedTopic, list[Any]]]:
    for topic in request.topics:
        name, topic_id = ("", topic.topic_id) if by_id else (topic.name, None)
        yield RequestedTopic(name, topic_id, topic=None), topic.partitions


def _refusal_steps(
    outcomes: Outcomes, topics: Iterable[tuple[RequestedTopic, list[Any]]], error: Codes
) -> Steps:
    for requested, partitions in topics:
        for batch in batches(partitions):
            outcomes.add_all(requested, (p.partition_index for p in batch), error)
            yield


def _committed_partition(partition: Any) -> CommittedPartition:
    return CommittedPartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata,
    )


async def serve_commit(context: RequestContext, request: Any) -> Fields | Deferred:
    """Commit the offsets of the partitions that exist. The others have an error in the response."""
    by_id = _is_by_id(context)
    if not may_read_group(context, request.group_id):
        return await refuse_all(context, request, GatewayError.GROUP_AUTHORIZATION_FAILED, by_id=by_id)
    topics = await look_up(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return await refuse_all(context, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, by_id=by_id)
    slices, valid = context.slices(), ValidPartitions()
    await slices.run(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.topics}
    await slices.run(valid.encode())
    response = _send_commit(context, request, valid)
    return Deferred(asyncio.create_task(valid.merge(slices, response)), valid.merged_fields)


def serve_commit_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """Answer a small request as `serve_commit` does.

    Return None if topics have to be looked up at a broker, or if the client may not commit offsets of the
    group.
    """
    if not may_read_group(context, request.group_id):
        return None
    topics = look_up_at_once(context, request.topics, Operation.READ, by_id=_is_by_id(context))
    if topics is None:
        return None
    valid = ValidPartitions()
    run_at_once(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.topics}
    run_at_once(valid.encode())
    return Deferred(_send_commit(context, request, valid), valid.merge_at_once)


def _is_by_id(context: RequestContext) -> bool:
    return context.version >= FIRST_VERSION_WITH_IDS


def _send_commit(
    context: RequestContext, request: Any, valid: ValidPartitions
) -> Future[OffsetCommitResponse]:
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
    # For the metrics. If the commit is refused, all partitions have the same error.
    if not answer.error_code and answer.topics:
        return answer.topics[0].partitions[0].error_code
    return answer.error_code


OFFSET_COMMIT = Api(
    key=ApiKey.OffsetCommit, serve=serve_commit, serve_at_once=serve_commit_at_once, error_code=_error_code
)


_PARTITION_INDEX = attrgetter("partition_index")


async def serve_offset_delete(context: RequestContext, request: Any) -> Fields | Deferred:
    """Delete the offsets of the partitions that exist. The others have an error in the response."""
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
                TopicPartitions(requested.name, await slices.each(_PARTITION_INDEX, partitions))
                for requested, partitions in valid.topics
            ],
        ),
        ANSWER_TIMEOUT_MS,
    )
    return Deferred(asyncio.create_task(valid.merge(slices, response)), partial(_deletion_fields, valid))


def _deletion_fields(valid: ValidPartitions, answer: OffsetDeleteResponse) -> Fields:
    if answer.error_code is not ErrorCode.NONE:
        return {"error_code": answer.error_code}
    return {"error_code": ErrorCode.NONE, **valid.merged_fields(answer)}


OFFSET_DELETE = Api(key=ApiKey.OffsetDelete, serve=serve_offset_delete)
