"""Rebalances that are polled once a second: reported starts are true, or there is no report."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, GroupState, HistoryEntry
from kafka_why.contract.sightings import (
    MEMBERS_MAX,
    RebalanceSeen,
    SeenMember,
    SightingRecord,
    decode_sighting,
    sighting_key,
)
from kafka_why.observed.consumer_offsets.schemas import kafka_partition
from streaming.observing.operator import SIGHTINGS, by_time
from streaming.observing.rebalance_poller import GROUPS_MAX, RebalanceRuns, SeenGroup
from streaming.query.admission import LogRow
from tests.harness.observed_epochs import Said
from tests.harness.observed_log import CREATED, G, Watched, classic_member, generation

INTERVAL_MS = 1_000


class Truth(NamedTuple):
    """A rebalance as it was: when it began, when its generation was formed and stored, and who came and went,
    with the times. `before` are the members of the generation before.
    """

    number: int
    began_ms: int
    formed_ms: int
    stored_ms: int
    before: tuple[str, ...]
    changes: tuple[tuple[int, str, bool], ...]

    def members(self, at_ms: int) -> list[str]:
        """Return the members at this time."""
        there = list(self.before)
        for when_ms, name, came in self.changes:
            if when_ms <= at_ms:
                there = [*there, name] if came else [m for m in there if m != name]
        return there


def random_truth(random: Random, rebalances: int) -> list[Truth]:
    """Rebalances of a group, short and long, one close to the other or not."""
    now_ms, members, found = 2_000, tuple[str, ...](), list[Truth]()
    for number in range(1, rebalances + 1):
        began_ms = now_ms + random.choice((1, 20, 600, 3_000, 9_000))
        lasts_ms = random.choice((5, 60, 400, 1_500, 4_000, 12_000))
        formed_ms = began_ms + lasts_ms
        stored_ms = formed_ms + random.choice((2, 30, 300, 1_500))
        first = (began_ms, f"m{number}", True)
        changes = [first] if len(members) < 2 or random.random() < 0.5 else [(began_ms, members[0], False)]
        if random.random() < 0.3:
            changes.append((random.randrange(began_ms, formed_ms), f"n{number}", True))
        if len(members) > 2 and random.random() < 0.4:
            changes.append((formed_ms, members[1], False))  # the others waited for it
        truth = Truth(number, began_ms, formed_ms, stored_ms, members, tuple(sorted(changes)))
        found.append(truth)
        now_ms, members = stored_ms, tuple(truth.members(formed_ms))
    return found


@dataclass
class PolledGroup:
    """Plays the polls and the batches. The clock of the broker with the polled records is `skew_ms` ahead.
    Batches are at most `lag_ms` behind the log.
    """

    random: Random
    truth: list[Truth]
    lag_ms: int = 0
    skew_ms: int = 0
    fails: float = 0.0
    watched: Watched = field(default_factory=Watched)
    _sightings: list[LogRow] = field(default_factory=list)
    _log: list[tuple[int, Said]] = field(default_factory=list)
    _read: int = 0
    _read_sightings: int = 0

    def play(self) -> Watched:
        """Poll each second and read each second, each with its delays. Return the observed groups."""
        runs = RebalanceRuns(1, iter(map(str, range(10**6))).__next__)
        self._log = [(1_000, CREATED), *((t.stored_ms, _generation(t)) for t in self.truth)]
        end_ms = self.truth[-1].stored_ms + 20_000
        committed, batch_ms = 0, 1_500
        for at_ms in range(1_200, end_ms, INTERVAL_MS):
            while batch_ms <= at_ms:
                committed = self._batch(batch_ms)
                batch_ms += self.random.choice((200, 1_000, 1_000))
            self._look(runs, at_ms + self.random.randrange(100), committed)
        self.lag_ms = 0
        self._batch(end_ms + INTERVAL_MS)
        return self.watched

    def _look(self, runs: RebalanceRuns, asked_ms: int, committed: int) -> None:
        if self.random.random() < self.fails:
            return
        now_ms = asked_ms + self.random.randrange(30)
        listed = {G} if self._state(now_ms) is not None else set[str]()
        now_ms += self.random.randrange(30)
        seen = {}
        if listed and (described := self._state(now_ms)) is not None:
            seen[G] = described
        now_ms += self.random.randrange(10)
        runs.update(asked_ms / 1000, now_ms / 1000, listed, seen, is_whole=self.random.random() >= self.fails)
        answered_s = now_ms / 1000
        runs.update_ends(now_ms / 1000, {0: sum(at <= now_ms for at, _ in self._log)}, {0: committed})
        for key, record in runs.records(now_ms / 1000, answered_s):
            appended_ms = now_ms + self.random.randrange(1, 30) + self.skew_ms
            row = LogRow(SIGHTINGS, len(self._sightings), appended_ms, key, encode(record))
            self._sightings.append(row)

    def _state(self, at_ms: int) -> SeenGroup | None:
        for truth in self.truth:
            if truth.began_ms <= at_ms < truth.stored_ms:
                is_formed = at_ms >= truth.formed_ms
                state = GroupState.COMPLETING_REBALANCE if is_formed else GroupState.PREPARING_REBALANCE
                members = truth.members(min(at_ms, truth.formed_ms))
                return SeenGroup(
                    state.value, tuple(SeenMember(f"{m}-1", None, m, "/10.0.0.1") for m in members)
                )
        return None

    def _batch(self, at_ms: int) -> int:
        """Read a batch, and return how many records of the log were read so far."""
        to_ms = at_ms - self.random.randrange(self.lag_ms + 1)
        log = [row for row in self._log[self._read :] if row[0] <= to_ms]
        rows = [row for row in self._sightings[self._read_sightings :] if row.at_ms <= at_ms]
        self._read += len(log)
        self._read_sightings += len(rows)
        records = [LogRow(0, n, at, b"", b"") for n, (at, _) in enumerate(log)]
        for row in by_time([*rows, *records]):
            if row.partition == SIGHTINGS:
                self.watched.take([_seen(row)])
            else:
                self.watched.take([log[row.offset][1]])
        return self._read


def _seen(row: LogRow) -> Said:
    group_id, says = decode_sighting(row.key, row.value, row.at_ms)
    assert isinstance(says, RebalanceSeen)
    return Said(row.at_ms, group_id, says)


def _generation(truth: Truth) -> Said:
    members = (classic_member(name, 0) for name in truth.members(truth.formed_ms))
    return Said(truth.stored_ms, G, generation(truth.number, *members, since_ms=truth.formed_ms))


# What a look, its record and the reading of two clocks take here.
DELAYS_MS = 100


@pytest.mark.parametrize("fails", [0.0, 0.2])
@given(seed=st.integers(0, 100_000), lag_ms=st.sampled_from((0, 300, 5_000, 60_000)))
def test_rebalance_starts_are_correct_despite_failed_polls(seed: int, lag_ms: int, fails: float) -> None:
    """The start is within its reported bounds, even if polls fail and the log is read late."""
    random = Random(seed)
    truth = random_truth(random, 8)
    watched = PolledGroup(random, truth, lag_ms, fails=fails).play()
    found = by_generation(watched.history)
    for now in truth:
        assert_true(now, found[now.number])
    assert set(watched.groups[G].member_ids()) == {f"{m}-1" for m in truth[-1].members(truth[-1].formed_ms)}
    reader = HistoryReader(from_start=True)
    assert all(reader.is_new(entry) for entry in watched.history)
    assert reader.gaps == {}
    for before, after in pairwise(watched.history):
        assert (before.to_state, before.at_ms <= after.at_ms) == (after.from_state, True)


@given(seed=st.integers(0, 100_000), skew_ms=st.sampled_from((-400, -50, 50, 400)))
def test_clock_difference_shifts_a_rebalance_start_by_no_more_than_itself(seed: int, skew_ms: int) -> None:
    random = Random(seed)
    truth = random_truth(random, 8)
    found = by_generation(PolledGroup(random, truth, skew_ms=skew_ms).play().history)
    for now in truth:
        assert_true(now, found[now.number], abs(skew_ms))


def assert_true(now: Truth, entries: list[HistoryEntry], skew_ms: int = 0) -> None:
    (opening,) = [entry for entry in entries if entry.type is EntryType.PREPARING_REBALANCE]
    if opening.within_ms is None:
        assert opening.at_ms == now.formed_ms
    else:
        latest_ms, slack_ms = opening.at_ms, DELAYS_MS + skew_ms
        assert latest_ms - opening.within_ms - slack_ms <= now.began_ms <= latest_ms + slack_ms
    came = {name for _, name, is_new in now.changes if is_new}
    went = {name for _, name, is_new in now.changes if not is_new}
    said_came = {e.client_id for e in entries if e.type is EntryType.MEMBER_ADDED}
    said_went = {e.client_id for e in entries if e.type is EntryType.MEMBER_REMOVED}
    assert (said_came, said_went) == (came, went)
    for entry in entries:
        if entry.rule == "OB32":
            (left_ms,) = [at for at, name, is_new in now.changes if name == entry.client_id and not is_new]
            assert left_ms > now.began_ms, "a member that began the rebalance by leaving was not there later"


def by_generation(history: list[HistoryEntry]) -> dict[int, list[HistoryEntry]]:
    """Return the entries of the rebalance that made each generation."""
    found: dict[int, list[HistoryEntry]] = {}
    entries: list[HistoryEntry] = []
    for entry in history[1:]:
        entries.append(entry)
        if entry.type is EntryType.STABLE:
            found[entry.generation], entries = entries, []
    return found


def test_polls_find_every_long_rebalance() -> None:
    random = Random(1)
    long = seen = 0
    for _ in range(40):
        truth = random_truth(random, 8)
        found = by_generation(PolledGroup(random, truth).play().history)
        for before, now in pairwise(truth):
            (opening,) = [e for e in found[now.number] if e.type is EntryType.PREPARING_REBALANCE]
            # One that follows another between two looks is found at the second look after it, at the latest.
            if now.formed_ms - before.stored_ms > 2 * INTERVAL_MS and now.formed_ms - now.began_ms > 2_500:
                long += 1
                seen += opening.within_ms is not None
    assert long > 50
    assert seen == long


PREPARING = SeenGroup("PreparingRebalance", (SeenMember("a-1", "i", "a", "/10.0.0.1"),))
PARTITION = kafka_partition("g", 50)


class Looks:
    """Polls of a cluster whose topic has 50 partitions, a second apart, each answered after 10 ms."""

    def __init__(self) -> None:
        self.runs = RebalanceRuns(50, iter(map(str, range(10**6))).__next__)
        self.at_s = 100.0

    def look(
        self, *names: str, finished: Iterable[str] = (), seen: SeenGroup = PREPARING, is_whole: bool = True
    ) -> dict[str, SightingRecord]:
        """Return the records that a poll writes if it lists these groups. Some were finished when they were
        described.
        """
        self.at_s += 1
        listed, answered_s = set(names), self.at_s + 0.01
        described = {g: seen for g in self.runs.choose(listed) if g not in set(finished)}
        self.runs.update(self.at_s, answered_s, listed, described, is_whole=is_whole)
        return self.written(answered_s)

    def written(self, seen_s: float) -> dict[str, SightingRecord]:
        """Return the records written 5 ms later."""
        records = self.runs.records(seen_s + 0.005, seen_s)
        return {key.split(b"/", 1)[1].decode(): record for key, record in records}

    def read(self, end: int) -> None:
        """The group's partition ends at 7 now, and the query has read up to `end`."""
        self.runs.update_ends(self.at_s + 0.02, {PARTITION: 7}, {PARTITION: end})


def test_start_of_a_rebalance_is_bounded_by_the_previous_poll() -> None:
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


def test_polled_rebalances_the_query_never_reads_are_dropped() -> None:
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


def test_polled_record_of_a_large_group_omits_its_members() -> None:
    looks = Looks()
    looks.look()
    members = tuple(SeenMember(f"m-{n}", None, "c", "/10.0.0.1") for n in range(MEMBERS_MAX + 1))
    assert looks.look("g", seen=SeenGroup("PreparingRebalance", members))["g"].members is None


def test_polled_record_round_trips_in_broker_time() -> None:
    looks = Looks()
    looks.look()
    record = looks.look("g/é")["g/é"]
    key = sighting_key("g/é", 7)
    group_id, seen = decode_sighting(key, encode(record), 50_000)
    assert (group_id, seen.first_ms, seen.seen_ms, seen.read_ms) == ("g/é", 49_995, 49_995, None)
    assert (seen.state, seen.within_ms, seen.members) == ("PreparingRebalance", 1_010, PREPARING.members)


def test_partition_of_a_group_uses_javas_hash() -> None:
    """String.hashCode of "hello" is 99162322, of "orders" -1008770331, of another word the least of all."""
    assert kafka_partition("hello", 1_000) == 322
    assert kafka_partition("polygenelubricants", 50) == 0
    assert kafka_partition("", 50) == 0
    assert kafka_partition("\U0001f600", 10**9) == 0xD83D * 31 + 0xDE00
    assert kafka_partition("orders", 10**9) == 8_770_331
