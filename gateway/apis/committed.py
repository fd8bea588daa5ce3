"""The partitions of a request that commits offsets, and their outcomes.

A request may have many partitions. So the work is done in steps: see `gateway.apis.slices`.
"""

from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any

from gateway.apis.context import RequestContext
from gateway.apis.guards import may_read_topic
from gateway.apis.slices import Slices, Steps, at_once, batches
from gateway.apis.topics import Codes, NamedTopic, Outcomes
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic
from kafka_why.contract.kafka.responses import OffsetCommitResponse, PartitionError, TxnOffsetCommitResponse

Answer = OffsetCommitResponse | TxnOffsetCommitResponse


class Valid:
    """The partitions of a request. `topics` are those that can be committed, `outcomes` the errors of the
    others, and in the end of all. `committed` is what the coordinator gets.
    """

    def __init__(self) -> None:
        self.topics: list[tuple[NamedTopic, list[Any]]] = []
        self.outcomes = Outcomes()
        self.committed: list[CommittedTopic] = []

    def sort(self, context: RequestContext, request: Any, topics: Sequence[NamedTopic]) -> Steps:
        """Separate the partitions that can be committed from the others. `topics` are the request's."""
        for named, topic in zip(topics, request.topics, strict=True):
            name = named.name if named.topic is None else named.topic.name
            if name and not may_read_topic(context, name):
                indexes = (p.partition_index for p in topic.partitions)
                self.outcomes.add_all(named, indexes, GatewayError.TOPIC_AUTHORIZATION_FAILED)
                yield
                continue
            there: list[Any] = []
            for some in batches(topic.partitions):
                valid = [p for p in some if named.has(p.partition_index)]
                if len(valid) < len(some):
                    indexes = (p.partition_index for p in some if not named.has(p.partition_index))
                    self.outcomes.add_all(named, indexes, named.missing)
                there += valid
                yield
            if there:
                self.topics.append((named, there))

    def encode(self) -> Steps:
        """Make `committed`."""
        for named, partitions in self.topics:
            assert named.topic is not None
            committed: list[CommittedPartition] = []
            for some in batches(partitions):
                committed += map(_committed, some)
                yield
            self.committed.append(CommittedTopic(named.topic.name, committed, named.topic.topic_id))

    def fields(self, answer: Answer) -> Fields:
        """The errors of all partitions."""
        at_once(self._merge(answer))
        return self.all_fields(answer)

    async def merged(self, slices: Slices, answer: Awaitable[Answer]) -> Answer:
        """Wait for the coordinator's answer. When this returns, `all_fields` has what `fields` would."""
        answered = await answer
        await slices.run(self._merge(answered))
        return answered

    def all_fields(self, answer: Answer) -> Fields:
        """The errors of all partitions, after `merged`."""
        return {"topics": self.outcomes.fields()}

    async def refused(self, slices: Slices, error: Codes) -> Fields:
        """The same error for all partitions that have none."""
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
    """The same error for all partitions of a request."""
    outcomes = Outcomes()
    at_once(_refuse(outcomes, _requested(request, by_id=by_id), error))
    return {"topics": outcomes.fields()}


async def refused(context: RequestContext, request: Any, error: Codes, *, by_id: bool) -> Fields:
    """As `refused_at_once`, in slices."""
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


def _committed(partition: Any) -> CommittedPartition:
    return CommittedPartition(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata,
    )
