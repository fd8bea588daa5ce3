"""The gateway's counts of share groups' deliveries: rows SP29 to SP35, without connections."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace as Fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.deliveries import member as members
from gateway.deliveries.group import ROWS_MAX, SUSPECTS_MAX, CapacityCounter, HeldRanges, OffsetRange
from gateway.deliveries.member import GRACE_MS, TYPES_MAX, AcknowledgeType, MemberDeliveries, batches_of
from gateway.deliveries.service import GROUPS_MAX, Deliveries
from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from kafka_why.contract.telemetry import ACCEPTED, GONE, OPEN, REJECTED, Counted, GroupDeliveries, Suspect

TOPIC = UUID(int=7)
LOCK_MS = 15_000
FETCH, ACKNOWLEDGE = 78, 79
LATE, SESSION_LOST = 121, 122


class World:
    """Members of a group with scripted partition leaders. The clock moves only if a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.deliveries = Deliveries(lambda: self.now_ms)
        self.members: dict[str, MemberDeliveries] = {}

    def offsets_held(self, name: str) -> int:
        """Return how many offsets the member holds, as far as they are followed."""
        return sum(one.offsets for _, one in self.member(name)._held)

    def member(self, name: str, group_id: str = "g") -> MemberDeliveries:
        if name not in self.members:
            self.members[name] = member = self.deliveries.open(group_id, name)
            assert member.begin()
        return self.members[name]

    def ask(
        self, name: str, *batches: tuple[int, int, Sequence[int]], epoch: int = 1, key: int = FETCH
    ) -> Any:
        """Send a request with these acknowledgements. Return the function that answers it."""
        batched = [Fields(first_offset=f, last_offset=t, acknowledge_types=list(k)) for f, t, k in batches]
        partition = Fields(partition_index=0, acknowledgement_batches=batched)
        request = Fields(share_session_epoch=epoch, topics=[Fields(topic_id=TOPIC, partitions=[partition])])
        header = RequestHeader(key, 2, 5, "me", 0)
        sees = self.member(name).watch(header, request)

        def answer(
            *acquired: tuple[int, int, int], error: int = 0, top: int = 0, lock_ms: int = LOCK_MS
        ) -> None:
            records = [{"first_offset": f, "last_offset": t, "delivery_count": n} for f, t, n in acquired]
            told: dict[str, Any] = {
                "partition_index": 0,
                "current_leader": {"leader_id": 1, "leader_epoch": 1},
            }
            if key == FETCH:
                told |= {"acknowledge_error_code": error, "records": b"r", "acquired_records": records}
            else:
                told["error_code"] = error
            fields = {
                "error_code": top,
                "acquisition_lock_timeout_ms": lock_ms,
                "responses": [{"topic_id": TOPIC, "partitions": [told]}],
            }
            sees(codec.encode_response(header, fields))

        return answer

    def get(self, name: str, first: int, last: int, delivery_count: int = 1) -> None:
        self.ask(name)((first, last, delivery_count))

    def acknowledge(self, name: str, first: int, last: int, *types: int, error: int = 0) -> None:
        self.ask(name, (first, last, types), key=ACKNOWLEDGE)(error=error)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.deliveries.expire()

    def records(self) -> list[GroupDeliveries]:
        return [record for record, _ in self.deliveries.take_records()]

    def row(self, name: str = "a") -> Counted:
        (record,) = self.records()
        (row,) = [row for row in record.rows if row.member_id == name]
        return row

    def suspects(self) -> dict[int, Suspect]:
        return {one.offset: one for record in self.records() for one in record.suspects}

    @property
    def suspected(self) -> int:
        return self.deliveries.totals.suspected


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("answer", [{"error": LATE}, {"error": 6}, {"top": SESSION_LOST}])
def test_sp30_only_accepted_acknowledgements_are_counted(key: int, answer: dict[str, int]) -> None:
    world = World()
    world.get("a", 0, 9)
    ask = world.ask("a", (0, 9, [AcknowledgeType.ACCEPT]), key=key)
    ask(**answer) if "error" in answer else world.ask("a")(**answer)
    assert world.row().accepted == 0
    assert world.offsets_held("a") == 10


def test_sp31_redeliveries_and_the_last_deliveries_are_counted() -> None:
    world = World()
    world.get("a", 0, 9)
    world.get("a", 10, 11, 2)
    world.get("a", 12, 12, 4)
    world.get("a", 13, 13, 5)
    row = world.row()
    assert (row.delivered, row.redelivered, row.before_last, row.last) == (14, 4, 1, 1)


@pytest.mark.parametrize(
    ("deliveries", "outcome", "suspected"),
    [
        ([("a", AcknowledgeType.REJECT)], REJECTED, 1),
        ([("a", AcknowledgeType.RELEASE), ("a", AcknowledgeType.RELEASE)], OPEN, 0),  # one member may be bad
        (
            [("a", AcknowledgeType.RELEASE), ("a", AcknowledgeType.RELEASE), ("b", AcknowledgeType.RELEASE)],
            OPEN,
            1,
        ),
        (
            [("a", AcknowledgeType.RELEASE), ("b", AcknowledgeType.RELEASE), ("a", AcknowledgeType.ACCEPT)],
            ACCEPTED,
            1,
        ),
    ],
)
def test_sp32_record_rejected_once_or_released_by_several_members_is_suspect(
    deliveries: list[tuple[str, AcknowledgeType]], outcome: str, suspected: int
) -> None:
    world = World()
    for count, (name, how) in enumerate(deliveries, 1):
        world.get(name, 4, 4, count)
        world.acknowledge(name, 4, 4, how)
    assert world.suspected == suspected
    assert [one.outcome for one in world.suspects().values()] == [outcome] * suspected


@pytest.mark.parametrize("how", ["released", "expired", "connection", "session"])
def test_sp32_record_whose_last_delivery_failed_is_archived(how: str) -> None:
    world = World()
    world.get("a", 3, 3, 4)
    world.get("a", 4, 4, 5)
    if how == "released":
        world.acknowledge("a", 3, 4, AcknowledgeType.RELEASE)
    elif how == "expired":
        world.pass_ms(LOCK_MS + GRACE_MS)
    elif how == "connection":
        world.deliveries.close(world.member("a"))
    else:
        world.ask("a", epoch=-1, key=ACKNOWLEDGE)()
    assert {offset: one.outcome for offset, one in world.suspects().items()} == {4: GONE}


def test_sp32_limit_learned_later_archives_records_delivered_before() -> None:
    """A record that was delivered again since then may still be processed."""
    world = World()
    for offset in (4, 5):
        world.get("a", offset, offset, 2)
        world.acknowledge("a", offset, offset, AcknowledgeType.RELEASE)
    world.get("b", 5, 5, 3)
    group = world.member("a").group
    group.limit = 2
    group.suspects.set_limit(2)
    assert {offset: one.outcome for offset, one in world.suspects().items()} == {4: GONE}
    assert world.suspected == 0, "that counts what members did"


def test_sp32_acknowledgement_in_a_long_polling_fetch_is_in_time() -> None:
    """A ShareFetch waits for new records, and the leader has taken its acknowledgements long before."""
    world = World()
    world.get("a", 4, 4, 5)
    world.pass_ms(LOCK_MS - 1)
    answer = world.ask("a", (4, 4, [AcknowledgeType.ACCEPT]))
    world.pass_ms(10 * LOCK_MS)
    answer()
    row = world.row()
    assert (row.accepted, row.expired, world.suspected) == (1, 0, 0)


def test_sp35_processing_time_runs_from_delivery_to_acknowledgement_request() -> None:
    world = World()
    world.get("a", 0, 9)
    world.pass_ms(700)
    answer = world.ask("a", (0, 3, [AcknowledgeType.ACCEPT]), (4, 4, [AcknowledgeType.RELEASE]))
    world.pass_ms(500)
    answer()
    (record,) = world.records()
    (row,) = record.rows
    assert (row.processed_ms, row.processed_max_ms, record.lock_ms) == (5 * 700, 700, LOCK_MS)


def test_sp34_client_without_read_permission_uses_none_of_the_group_limit() -> None:
    deliveries = Deliveries(lambda: 0)
    request = Fields(share_session_epoch=0, topics=[])
    for number in range(2 * GROUPS_MAX):
        member = deliveries.open(f"g{number}", "m")
        sees = member.watch(RequestHeader(FETCH, 2, 5, "me", 0), request)
        sees(codec.encode_response(RequestHeader(FETCH, 2, 5, "me", 0), {"error_code": 30}))
        assert member.joined is None
    assert deliveries.open("another", "m").begin()


def test_too_many_acknowledge_types_are_truncated_and_not_interpreted() -> None:
    world = World()
    world.get("a", 0, 2 * TYPES_MAX - 1, 5)
    types = [AcknowledgeType.ACCEPT] * TYPES_MAX
    world.ask("a", (0, TYPES_MAX - 1, types), (TYPES_MAX, 2 * TYPES_MAX - 1, types))()
    row = world.row()
    assert (row.accepted, row.unfollowed, row.expired) == (TYPES_MAX, TYPES_MAX, 0)


@given(st.lists(st.tuples(st.integers(-5, 9), st.integers(-5, 9), st.lists(st.integers(-2, 6), max_size=4))))
def test_sp29_batches_kafka_refuses_are_not_counted(batches: list[tuple[int, int, list[int]]]) -> None:
    told = [Fields(first_offset=f, last_offset=t, acknowledge_types=k) for f, t, k in batches]
    partition = Fields(partition_index=0, acknowledgement_batches=told)
    found, is_cut = batches_of(Fields(topics=[Fields(topic_id=TOPIC, partitions=[partition])]))
    assert not is_cut
    for batch in found.get((TOPIC.bytes, 0), []):
        assert sum(last - first + 1 for first, last, _ in batch.runs()) == batch.last - batch.first + 1
        assert {kind for _, _, kind in batch.runs()} <= set(AcknowledgeType)


def test_sp34_numbers_of_rows_suspects_and_groups_are_bounded() -> None:
    world = World()
    for number in range(ROWS_MAX + 5):
        world.get(f"m{number}", number, number, 5)
        world.acknowledge(f"m{number}", number, number, AcknowledgeType.RELEASE)
    (record,) = world.records()
    assert record.others is not None
    counted = [*record.rows, record.others]
    assert sum(row.delivered for row in counted) == sum(row.released for row in counted) == ROWS_MAX + 5
    assert len(world.member("m0").group.suspects._suspects) == SUSPECTS_MAX
    opened = [world.deliveries.open(f"g{number}", "m") for number in range(GROUPS_MAX)]
    assert [member.begin() for member in opened] == [True] * (GROUPS_MAX - 1) + [False]
    world.deliveries.close(opened[0])
    another = world.deliveries.open("another", "m")
    assert another.begin(), "in the place of a group without members"
    assert not world.deliveries.open("g" * 1_025, "m").begin()


def test_sp34_total_of_held_ranges_of_all_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "HELD_MAX", 3)
    world = World()
    for offset in range(0, 10, 2):
        world.get("a", offset, offset)
    row = world.row()
    assert (row.delivered, row.unfollowed) == (5, 2)
    world.acknowledge("a", 0, 9, AcknowledgeType.ACCEPT)
    assert world.row().accepted == 3


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
    """The reference model: the same counts, offset by offset."""

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
