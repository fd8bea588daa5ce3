"""What looks at the brokers become on the sightings topic."""

from collections.abc import Iterable

from kafka_why.contract.codec import encode
from kafka_why.contract.sightings import (
    MEMBERS_MAX,
    SeenMember,
    SightingRecord,
    decode_sighting,
    sighting_key,
)
from kafka_why.observed.consumer_offsets.schemas import partition_of_offsets
from streaming.observing.rebalance_poller import GROUPS_MAX, RebalanceRuns, SeenGroup

PREPARING = SeenGroup("PreparingRebalance", (SeenMember("a-1", "i", "a", "/10.0.0.1"),))
PARTITION = partition_of_offsets("g", 50)


class Looks:
    """Looks at a cluster whose topic has 50 partitions, a second apart, each answered after 10 ms."""

    def __init__(self) -> None:
        self.runs = RebalanceRuns(50, iter(map(str, range(10**6))).__next__)
        self.at_s = 100.0

    def look(
        self, *names: str, finished: Iterable[str] = (), seen: SeenGroup = PREPARING, is_whole: bool = True
    ) -> dict[str, SightingRecord]:
        """Return what a look writes that lists these groups, some of them finished when they were
        described.
        """
        self.at_s += 1
        listed, answered_s = set(names), self.at_s + 0.01
        described = {g: seen for g in self.runs.choose(listed) if g not in set(finished)}
        self.runs.update(self.at_s, answered_s, listed, described, is_whole=is_whole)
        return self.written(answered_s)

    def written(self, seen_s: float) -> dict[str, SightingRecord]:
        """Return what is written 5 ms later."""
        records = self.runs.records(seen_s + 0.005, seen_s)
        return {key.split(b"/", 1)[1].decode(): record for key, record in records}

    def read(self, end: int) -> None:
        """The group's partition ends at 7 now, and the query has read up to `end`."""
        self.runs.update_ends(self.at_s + 0.02, {PARTITION: 7}, {PARTITION: end})


def test_rebalance_unseen_by_the_previous_poll_has_a_bounded_beginning() -> None:
    looks = Looks()
    assert looks.look() == {}
    record = looks.look("g")["g"]
    assert (record.first_ago_ms, record.seen_ago_ms, record.within_ms) == (5, 5, 1_010)
    assert record.members == PREPARING.members
    later = looks.look("g")["g"]
    assert (later.run, later.first_ago_ms, later.seen_ago_ms) == (record.run, 1_005, 5)


def test_rebalance_end_is_written_once_the_log_is_read_up_to_it() -> None:
    looks = Looks()
    looks.look()
    run = looks.look("g")["g"].run
    assert looks.look() == {}
    looks.read(6)
    assert looks.look() == {}
    looks.read(7)
    over = looks.look()["g"]
    assert (over.run, over.is_over, over.members) == (run, True, None)
    assert looks.look() == {}
    assert looks.runs.partitions() == set()


def test_ended_rebalances_the_query_never_reads_are_dropped() -> None:
    looks = Looks()
    for names in ((), ("g",), ()):
        looks.look(*names)
    looks.at_s += 601
    looks.look()
    assert looks.runs.partitions() == set()


def test_number_of_followed_groups_is_limited_and_existing_ones_stay() -> None:
    looks = Looks()
    looks.look()
    assert set(looks.look("z")) == {"z"}
    many = [f"g{number:05}" for number in range(GROUPS_MAX)]
    followed = looks.look("z", *many)
    assert len(followed) == GROUPS_MAX
    assert "z" in followed
    left_out = many[-1]
    assert left_out not in followed
    assert looks.look(left_out) == {}, "since when it is rebalancing is not known"


def test_sighting_of_a_large_group_omits_its_members() -> None:
    looks = Looks()
    looks.look()
    members = tuple(SeenMember(f"m-{n}", None, "c", "/10.0.0.1") for n in range(MEMBERS_MAX + 1))
    assert looks.look("g", seen=SeenGroup("PreparingRebalance", members))["g"].members is None


def test_sighting_record_round_trips_in_broker_time() -> None:
    looks = Looks()
    looks.look()
    record = looks.look("g/é")["g/é"]
    key = sighting_key("g/é", 7)
    group_id, seen = decode_sighting(key, encode(record), 50_000)
    assert (group_id, seen.first_ms, seen.seen_ms, seen.read_ms) == ("g/é", 49_995, 49_995, None)
    assert (seen.state, seen.within_ms, seen.members) == ("PreparingRebalance", 1_010, PREPARING.members)


def test_partition_of_a_group_uses_javas_hash() -> None:
    """String.hashCode of "hello" is 99162322, of "orders" -1008770331, of another word the least of all."""
    assert partition_of_offsets("hello", 1_000) == 322
    assert partition_of_offsets("polygenelubricants", 50) == 0
    assert partition_of_offsets("", 50) == 0
    assert partition_of_offsets("\U0001f600", 10**9) == 0xD83D * 31 + 0xDE00
    assert partition_of_offsets("orders", 10**9) == 8_770_331
