"""Properties of offsets in every log: a fetch returns the last accepted commit of the same topic."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    OffsetCommit,
    OffsetFetch,
    TopicMetadata,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import OffsetCommitResponse, OffsetFetchResponse
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import Effects
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS, realise, script

logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(50, 300))
configs = st.builds(
    CoordinatorConfig,
    offsets_retention_minutes=st.sampled_from((10_080, 1, 5)),
    offsets_retention_check_interval_ms=st.sampled_from((600_000, 7_000)),
)
Partition = tuple[str, int]


@dataclass
class Model:
    """The offsets of one group with their topic ids, and the ids of deleted topics according to
    TopicMetadata.
    """

    offsets: dict[Partition, tuple[int, UUID | None]] = field(default_factory=dict)
    deleted: set[UUID] = field(default_factory=set)

    def commit(self, request: OffsetCommit, response: OffsetCommitResponse) -> None:
        errors = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
        for topic in request.topics:
            for p in topic.partitions:
                key = (topic.name, p.partition_index)
                if errors.get(key) is ErrorCode.NONE:
                    _, known = self.offsets.get(key, (0, None))
                    self.offsets[key] = (p.committed_offset, topic.topic_id or known)

    def fetched(self, request: OffsetFetch) -> dict[Partition, int]:
        if request.topics is None:
            return {key: offset for key, (offset, _) in self.offsets.items()}
        found = {}
        for topic in request.topics:
            for p in topic.partition_indexes:
                offset, known = self.offsets.get((topic.name, p), (-1, None))
                is_other = known is not None and topic.topic_id not in (None, known)
                found[topic.name, p] = -1 if is_other else offset
        return found

    def see(self, request: TopicMetadata) -> set[Partition]:
        """Store topic ids, and return the partitions whose offsets must be removed."""
        gone: set[Partition] = set()
        for name, image in request.topics.items():
            of_topic = {key: known for key, (_, known) in self.offsets.items() if key[0] == name}
            if image is None:
                gone |= of_topic.keys()
            elif image.id in self.deleted:
                continue
            elif set(of_topic.values()) - {None, image.id}:
                gone |= {key for key, known in of_topic.items() if known != image.id}
            else:
                self.offsets |= {key: (self.offsets[key][0], image.id) for key in of_topic}
        self.deleted |= {known for key in gone if (known := self.offsets[key][1]) is not None}
        return gone


def follow(model: Model, effects: Effects, requests: dict[str, Row]) -> int:
    """Update the model from a step's effects and compare the fetched offsets. Return their number."""
    for event in effects.history:
        if event.type is EntryType.GROUP_DELETED:
            model.offsets.clear()
            model.deleted.clear()
        partitions = {(t, n) for t, numbers in (event.partitions or {}).items() for n in numbers}
        cause = requests[event.cause].request if event.cause in requests else None
        if partitions and isinstance(cause, TopicMetadata):
            assert partitions == model.see(cause)
        for key in partitions:
            del model.offsets[key]
    told = 0
    for response in (reply.response for reply in effects.replies):
        request = requests[response.request].request
        if isinstance(response, OffsetCommitResponse):
            assert isinstance(request, OffsetCommit)
            model.commit(request, response)
        elif isinstance(response, OffsetFetchResponse) and response.error_code is ErrorCode.NONE:
            assert isinstance(request, OffsetFetch)
            found = {(t.name, p.partition_index): p for t in response.topics for p in t.partitions}
            assert {key: p.committed_offset for key, p in found.items()} == model.fetched(request)
            told += sum(p.committed_offset >= 0 for p in found.values())
    return told


def run(rows: Sequence[Row], config: CoordinatorConfig, seed: int) -> int:
    """Run the log in batches, the state encoded and decoded between them, with a model for each group."""
    requests = {row.request_id: row for row in rows}
    told = 0
    for group_id in GROUPS:
        model = Model()
        state: bytes | None = None
        for batch in batches.cut(rows, seed):
            timeline = Timeline(group_id, batches.decode(group_id, state), config)
            for row in batch.rows:
                if row.request.group_id == group_id:
                    timeline.apply(row)
                    told += follow_all(model, timeline, requests)
                    if isinstance(row.request, TopicMetadata):
                        assert model.see(row.request) == set()  # the offsets of deleted topics were removed
            timeline.fire_until(batch.watermark_ms)
            told += follow_all(model, timeline, requests)
            state = batches.encode(timeline.group)
        group = batches.decode(group_id, state)
        offsets = group.offsets if isinstance(group, ClassicGroup) else {}
        assert model.offsets == {
            (t, p): (o.offset, None if o.topic_id is None else UUID(bytes=o.topic_id))
            for t, partitions in offsets.items()
            for p, o in partitions.items()
        }
    return told


def follow_all(model: Model, timeline: Timeline, requests: dict[str, Row]) -> int:
    told = 0
    for effects in timeline.drain_effects():
        assert isinstance(effects, Effects)
        told += follow(model, effects, requests)
    return told


def plain(rows: Sequence[Row]) -> list[Row]:
    """Return the log without transactions, which `test_transactions_properties` has."""
    return [row for row in rows if not isinstance(row.request, TxnOffsetCommit | TransactionMarker)]


@given(logs, configs, st.integers(0, 2**32 - 1))
@examples(150)
def test_offset_fetch_returns_the_last_accepted_commit_of_the_same_topic(
    log: tuple[int, int], config: CoordinatorConfig, seed: int
) -> None:
    run(plain(realise(script(*log), config)), config, seed)


def test_random_logs_fetch_committed_offsets_often_enough() -> None:
    config = CoordinatorConfig()
    assert sum(run(plain(realise(script(seed, 300), config)), config, seed) for seed in range(40)) > 20
