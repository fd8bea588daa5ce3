"""What holds of offsets in every log: a fetch tells the last accepted commit, whatever came between."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.effects import Effects
from state.kafka.group import Group
from state.kafka.history import EntryType
from state.kafka.requests import OffsetCommit
from state.kafka.responses import OffsetCommitResponse, OffsetFetchResponse
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.random_log import GROUPS, realise, script

logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(50, 300))
configs = st.builds(
    CoordinatorConfig,
    offsets_retention_minutes=st.sampled_from((10_080, 1, 5)),
    offsets_retention_check_interval_ms=st.sampled_from((600_000, 7_000)),
)
Model = dict[tuple[str, int], int]


def follow(model: Model, effects: Effects, requests: dict[str, Row]) -> int:
    """Let the model learn from what a step said, and compare what it fetched; how many offsets it told."""
    for event in effects.history:
        if event.type is EntryType.GROUP_DELETED:
            model.clear()
        for topic, numbers in (event.partitions or {}).items():
            for number in numbers:
                del model[topic, number]
    told = 0
    for response in (reply.response for reply in effects.replies):
        if isinstance(response, OffsetCommitResponse):
            request = requests[response.request].request
            assert isinstance(request, OffsetCommit)
            model.update(accepted(request, response))
        elif isinstance(response, OffsetFetchResponse) and response.error_code is ErrorCode.NONE:
            found = {(t.name, p.partition_index): p for t in response.topics for p in t.partitions}
            assert {key: p.committed_offset for key, p in found.items()} == {
                key: model.get(key, -1) for key in found
            }
            told += sum(p.committed_offset >= 0 for p in found.values())
    return told


def accepted(request: OffsetCommit, response: OffsetCommitResponse) -> Model:
    errors = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
    asked = {(t.name, p.partition_index): p.committed_offset for t in request.topics for p in t.partitions}
    return {key: offset for key, offset in asked.items() if errors.get(key) is ErrorCode.NONE}


def run(rows: Sequence[Row], config: CoordinatorConfig, seed: int) -> int:
    """Run the log in batches, the state encoded and decoded between them, with a model beside each group."""
    requests = {row.request_id: row for row in rows}
    told = 0
    for group_id in GROUPS:
        model: Model = {}
        state: bytes | None = None
        for batch in batches.cut(rows, seed):
            timeline = Timeline(group_id, batches.decode(group_id, state), config)
            for row in batch.rows:
                if row.request.group_id == group_id:
                    timeline.apply(row)
            timeline.fire_until(batch.watermark_ms)
            for effects in timeline.take_effects():
                assert isinstance(effects, Effects)
                told += follow(model, effects, requests)
            state = batches.encode(timeline.group)
        group = batches.decode(group_id, state)
        offsets = group.offsets if isinstance(group, Group) else {}
        assert model == {(t, p): o.offset for t, partitions in offsets.items() for p, o in partitions.items()}
    return told


@given(logs, configs, st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_a_fetch_tells_the_last_accepted_commit(
    log: tuple[int, int], config: CoordinatorConfig, seed: int
) -> None:
    run(realise(script(*log), config), config, seed)


def test_random_logs_fetch_offsets_that_are_there() -> None:
    config = CoordinatorConfig()
    assert sum(run(realise(script(seed, 300), config), config, seed) for seed in range(40)) > 20
