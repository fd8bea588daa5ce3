"""What was delivered, beside a model that follows each offset."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.deliveries.group import CapacityCounter, HeldRanges, OffsetRange
from gateway.deliveries.member import GRACE_MS, AcknowledgeType
from kafka_why.contract.telemetry import Counted
from tests.unit.gateway.test_deliveries import LOCK_MS, World

STEP = st.one_of(
    st.tuples(
        st.just("get"), st.sampled_from("ab"), st.integers(0, 40), st.integers(1, 12), st.integers(1, 5)
    ),
    st.tuples(
        st.just("acknowledge"),
        st.sampled_from("ab"),
        st.integers(0, 45),
        st.lists(st.integers(0, 4), min_size=1, max_size=12),
        st.sampled_from([0, 0, 0, 121]),
    ),
    st.tuples(
        st.just("all"), st.sampled_from("ab"), st.integers(0, 45), st.integers(1, 12), st.integers(0, 4)
    ),
    st.tuples(st.just("pass"), st.just("a"), st.sampled_from([10, 5_000, LOCK_MS + GRACE_MS])),
    st.tuples(st.just("end"), st.sampled_from("ab")),
)
NAMES = {0: "gaps", 1: "accepted", 2: "released", 3: "rejected"}


class Model:
    """The same, offset by offset."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], tuple[int, bool]] = {}
        self.counts: Counter[tuple[str, str]] = Counter()

    def get(self, name: str, offsets: range, now_ms: int) -> None:
        for offset in offsets:
            self.counts[name, "delivered"] += 1
            before = self.held.pop((name, offset), None)
            self.counts[name, "expired"] += before is not None and not before[1]
            self.held[name, offset] = now_ms + LOCK_MS, False

    def acknowledge(self, name: str, types: dict[int, int], now_ms: int, error: int) -> None:
        for offset, kind in types.items():
            found = self.held.get((name, offset))
            if found is None:
                continue
            is_lost = found[1]
            if error:
                if is_lost:
                    self.counts[name, "late"] += 1
                    del self.held[name, offset]
                continue
            self.counts[name, "expired"] -= is_lost
            if kind == AcknowledgeType.RENEW:
                self.held[name, offset] = now_ms + LOCK_MS, False
                self.counts[name, "renewed"] += 1
            else:
                self.counts[name, NAMES[kind]] += 1
                del self.held[name, offset]

    def expire(self, now_ms: int) -> None:
        for (name, offset), (until_ms, is_lost) in list(self.held.items()):
            if not is_lost and until_ms + GRACE_MS <= now_ms:
                self.held[name, offset] = until_ms, True
                self.counts[name, "expired"] += 1

    def end(self, name: str) -> None:
        for key in [key for key in self.held if key[0] == name]:
            self.counts[name, "ended"] += not self.held.pop(key)[1]


def play(world: World, model: Model, kind: str, name: str, *told: Any) -> None:
    if kind == "get":
        first, count, delivery_count = told
        world.get(name, first, first + count - 1, delivery_count)
        model.get(name, range(first, first + count), world.now_ms)
    elif kind == "acknowledge":
        first, types, error = told
        world.acknowledge(name, first, first + len(types) - 1, *types, error=error)
        model.acknowledge(name, dict(enumerate(types, first)), world.now_ms, error)
    elif kind == "all":
        first, count, type_ = told
        world.acknowledge(name, first, first + count - 1, type_)
        model.acknowledge(name, dict.fromkeys(range(first, first + count), type_), world.now_ms, 0)
    elif kind == "pass":
        world.pass_ms(told[0])
        model.expire(world.now_ms)
    else:
        world.deliveries.close(world.members.pop(name))
        world.member(name)
        model.end(name)


@given(st.lists(STEP, max_size=60))
def test_each_delivered_record_is_acknowledged_released_expired_or_held(steps: list[tuple[Any, ...]]) -> None:
    world, model = World(), Model()
    for name in "ab":
        world.member(name)
    totals = {name: Counted() for name in "ab"}
    for step in steps:
        play(world, model, *step)
        for record in world.records():
            for row in record.rows:
                totals[row.member_id].add(row)
        for who, row in totals.items():
            held = world.offsets_held(who)
            ended = row.acknowledged + row.gaps + row.expired + row.ended + row.unfollowed
            assert row.delivered == ended + held
            for counted in ("delivered", *NAMES.values(), "expired", "ended", "renewed", "late"):
                assert getattr(row, counted) == model.counts[who, counted], counted


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), max_size=60))
def test_held_ranges_behave_as_a_set_of_offsets(steps: list[tuple[bool, int, int]]) -> None:
    room, place = CapacityCounter(1_000), (b"t", 0)
    held, model = HeldRanges(room, 1_000), set[int]()
    for is_added, first, size in steps:
        last = first + size
        taken = held.take(place, first, last)
        assert {o for one in taken for o in range(one.first, one.last + 1)} == model & {
            *range(first, last + 1)
        }
        model -= {*range(first, last + 1)}
        if is_added:
            assert held.add(place, OffsetRange(first, last, 1, 0, 0))
            model |= {*range(first, last + 1)}
        ranges = [one for _, one in held]
        assert ranges == sorted(ranges)
        assert sum(one.offsets for one in ranges) == len(model)
        assert room.free == 1_000 - len(ranges)
