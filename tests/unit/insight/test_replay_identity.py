"""The replay leads to what the operator wrote, byte by byte, however the log was cut into batches."""

from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from insight.replay.judge import How, judge
from insight.replay.recording import Answer, Bytes, Event, Line, Lines
from state.config import CoordinatorConfig
from tests.harness.coordinated_log import World
from tests.harness.examples import examples
from tests.spark import recorded_log

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=3_000)


def coordinate(seed: int, length: int, batches: int) -> World:
    rows = recorded_log.record(seed, length, CONFIG)
    partitions, _ = recorded_log.with_clock(rows, seed)
    offsets = [sorted(p, key=lambda r: r.at_ms) for p in partitions]
    world = World(CONFIG)
    for batch in recorded_log.cut(offsets, batches, seed):
        world.run(batch, times=1 + seed % 2)
    return world


@examples(60)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 120), batches=st.integers(1, 8))
def test_a_replay_is_identical_to_what_the_operator_wrote(seed: int, length: int, batches: int) -> None:
    verdict = judge(coordinate(seed, length, batches).recording())
    assert verdict.differences == []
    assert verdict.total("open") == 0


@examples(40)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 80))
def test_one_changed_record_is_a_difference(seed: int, length: int) -> None:
    """The negative control: an answer or a history entry with one byte changed, and one that is dropped."""
    recording = coordinate(seed, length, 4).recording()
    random = Random(seed)
    of_kind = [n for n, line in enumerate(recording.lines) if isinstance(line, Answer | Event)]
    assume(of_kind)
    at = random.choice(of_kind)
    chosen = recording.lines[at]
    copies = [n for n, line in enumerate(recording.lines) if _is_copy(line, chosen)]
    altered = Lines(
        recording.header, [_altered(x) if n in copies else x for n, x in enumerate(recording.lines)]
    )
    dropped = Lines(recording.header, [x for n, x in enumerate(recording.lines) if n not in copies])
    assert [d.how for d in judge(altered).differences] == [How.CHANGED]
    assert [d.how for d in judge(dropped).differences] == [How.MISSING]


def _is_copy(line: Line, of: Line) -> bool:
    return isinstance(of, Answer | Event) and isinstance(line, Answer | Event) and line.value == of.value


def _altered(line: Line) -> Line:
    assert isinstance(line, Answer | Event)
    text = line.value.get().decode()
    return replace(line, value=Bytes(text=text.replace('"version":1', '"version":2')))
