"""What the gateway counts of share groups' records: rows SP29 to SP35, without a wire."""

from collections.abc import Sequence
from types import SimpleNamespace as Fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.deliveries import member as members
from gateway.deliveries.group import ROWS_MAX, SUSPECTS_MAX
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
    """Members of a group whose leaders answer as they are told. The clock moves only if a test moves it."""

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


def test_sp29_acknowledgements_piggybacked_on_a_fetch_are_counted() -> None:
    world = World()
    world.get("a", 0, 9)
    world.ask("a", (0, 9, [AcknowledgeType.ACCEPT]))((10, 12, 1))
    assert (row := world.row()).accepted == 10
    assert row.delivered == 13


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


def test_sp34_client_without_read_on_the_group_uses_no_group_slot() -> None:
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
def test_sp29_batches_that_kafka_refuses_are_left_out(batches: list[tuple[int, int, list[int]]]) -> None:
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
    assert len(world.member("m0").group.suspects._known) == SUSPECTS_MAX
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
