"""A group by polls alone: what follows from how its descriptions differ."""

from collections.abc import Mapping, Sequence
from struct import pack

import pytest
from msgspec.structs import replace

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import CONSUMER, SHARE, HistoryEntry
from kafka_why.contract.protocols.subscriptions import Subscription, TopicPartition, encode_subscription
from kafka_why.observed.polled import ClassicPoll, EpochsPoll, PolledGroup, PolledMember
from kafka_why.observed.records import ClassicMember, MemberSubscription
from kafka_why.why import live_sources
from kafka_why.why.history import History
from kafka_why.why.live_sources import BrokersClock, Follower
from kafka_why.why.model import CauseKind
from kafka_why.why.report import Report, report
from kafka_why.wording import VisibleText
from tests.harness.observed_log import classic_member

G = "g"
ORDERS = pack(">16s", b"orders")
Poll = ClassicPoll | EpochsPoll | None


def member(name: str, *partitions: int, joined_in: int | None = None) -> ClassicMember:
    """Return a member of a classic group that was in generation `joined_in` when it joined."""
    subscription = encode_subscription(Subscription(("orders",), None, (), joined_in, None))
    return replace(classic_member(name, *partitions), subscription=subscription)


def classic(state: str, *members: ClassicMember) -> ClassicPoll:
    return ClassicPoll(0, 0, state, "consumer", "range", members)


def epochs(kind: str, epoch: int, target: int, **members: Sequence[int]) -> EpochsPoll:
    """Return a group whose members have partitions of `orders`, at the epoch that is their first number."""
    subscription = MemberSubscription(None, None, "c", "/10.0.0.1", ("orders",), "", -1, None, False, 0)
    has = {
        name: PolledMember(at, subscription, {ORDERS: held}, {ORDERS: held} if kind == CONSUMER else None)
        for name, (at, *held) in members.items()
    }
    return EpochsPoll(0, kind, "Stable", epoch, target, has, {ORDERS: "orders"})


def polled(*polls: Poll, committed: Mapping[int, int] | None = None) -> list[HistoryEntry]:
    """Return the entries after polls, one each second. `committed` has the offset of orders-0 by the poll."""
    group, offset = PolledGroup(G), None
    for n, poll in enumerate(polls):
        at_ms = 1_000 * (n + 1)
        if isinstance(poll, ClassicPoll):
            poll = poll.shifted(at_ms)
        offset = (committed or {}).get(n, offset)
        found = {} if offset is None else {TopicPartition("orders", 0): offset}
        group.apply(poll, found, at_ms)
    return group.entries


def explained(*polls: Poll, committed: Mapping[int, int] | None = None) -> Report:
    return report(G, polled(*polls, committed=committed), 60_000, from_start=False)


ALONE = classic("Stable", member("a", 0, 1, joined_in=4))
BOTH = classic("Stable", member("a", 0, joined_in=5), member("b", 1))


def test_polled_generation_is_one_above_that_in_the_members_subscriptions() -> None:
    of = explained(ALONE, BOTH)
    (joined,) = of.rebalances
    assert (of.generation, joined.generation_from, joined.generation_to) == (6, 5, 6)
    assert (joined.cause.kind, joined.cause.member_ids) == (CauseKind.MEMBER_JOINED, ["b-1"])
    assert joined.moves is not None
    assert joined.moves.moved == 1
    unseen = explained(ALONE, classic("Stable", member("a", 0, joined_in=7), member("b", 1, joined_in=7)))
    assert "generations 6 to 7" in unseen.rebalances[0].cause.reason


def test_unknown_generations_are_counted_until_a_member_names_one() -> None:
    unknown = classic("Stable", member("a", 0, 1))
    assert explained(unknown, classic("Stable", member("a", 0), member("b", 1))).generation == 1
    of = explained(unknown, ALONE, BOTH)
    assert [one.generation_to for one in of.rebalances] == [5, 6]
    assert not any("left no record" in one.cause.reason for one in of.rebalances)


def test_polled_rebalance_that_changed_nothing_has_a_beginning_and_an_end() -> None:
    waiting = classic("PreparingRebalance", member("a"))
    of = explained(ALONE, waiting, waiting, ALONE)
    (again,) = of.rebalances
    assert (again.began_ms, again.began_within_ms, again.ended_ms) == (2_000, 1_000, 4_000)


@pytest.mark.parametrize(
    ("committed", "said"),
    [
        ({0: 7, 1: 8}, ": the last commit of its partitions was 2.0 s before"),
        ({0: 7}, ""),  # perhaps by the consumer before it
    ],
)
def test_commits_show_how_long_a_removed_member_was_silent(committed: Mapping[int, int], said: str) -> None:
    gone = classic("Stable", member("a", 0, 1, joined_in=6))
    both = classic("Stable", member("b", 0), member("a", 1, joined_in=5))
    of = explained(both, both, both, gone, committed=committed)
    assert of.rebalances[0].cause.reason == f"member b-1 left or expired{said}"


NEW = classic("Stable", member("a", 0, 1))


@pytest.mark.parametrize("polls", [(None, NEW), (ALONE, None, NEW)])
def test_group_absent_from_the_previous_poll_is_shown_as_created(polls: Sequence[Poll]) -> None:
    assert "GroupCreated" in [entry.type for entry in polled(*polls)]


def test_first_poll_shows_no_rebalance() -> None:
    for poll in (ALONE, classic("Empty"), epochs(CONSUMER, 2, 2, a=(2, 0, 1)), epochs(SHARE, 2, 2, a=(2, 0))):
        of = explained(poll)
        assert not of.rebalances
        assert not any("created" in note for note in of.notes)


def test_member_is_stable_when_it_has_reached_its_target_epoch() -> None:
    of = explained(
        epochs(CONSUMER, 5, 5, a=(5, 0, 1)),
        epochs(CONSUMER, 6, 5, a=(5, 0, 1), b=(0,)),
        epochs(CONSUMER, 6, 6, a=(5, 0), b=(6, 1)),
        epochs(CONSUMER, 6, 6, a=(6, 0), b=(6, 1)),
    )
    (joined,) = of.rebalances
    assert (joined.cause.kind, joined.cause.member_ids) == (CauseKind.MEMBER_JOINED, ["b"])
    assert (joined.began_ms, joined.ended_ms, of.state) == (2_000, 4_000, "Stable")
    missed = explained(epochs(CONSUMER, 5, 5, a=(5, 0)), epochs(CONSUMER, 8, 8, a=(8, 0), b=(8, 1)))
    assert any("entries are missing" in note for note in missed.notes)


def test_group_of_another_type_starts_a_new_history() -> None:
    of = explained(ALONE, epochs(CONSUMER, 9, 9, a=(9, 0, 1)), None)
    assert (of.group_type, of.state) == ("consumer", "Dead")


def test_follower_keeps_numbering_rebalances_after_dropping_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_sources, "_ENTRIES_MAX", 20)
    shown: list[VisibleText] = []
    polls = [classic("Stable", member("a", 0, joined_in=n), member(f"b{n}", 1)) for n in range(1, 30)]
    entries = polled(*polls)

    class Source:
        interval_s = 0.0

        def more(self) -> list[AnyHistoryEntry]:
            return []

        def close(self) -> None: ...

    follower = Follower(History([], frozenset(), False, 0), None, Source(), shown.append)
    for entry in entries:
        follower.add([entry])
    numbers = [line.split()[0] for text in shown for line in text.splitlines() if line.startswith("#")]
    assert numbers == [f"#{n}" for n in range(1, 29)]


@pytest.mark.parametrize(
    ("appended_ms", "ahead_ms"),
    [
        (1_400, 0),
        (900, 100),  # it was appended after the read before
        (5_000, -3_490),
    ],
)
def test_broker_clock_is_assumed_equal_to_ours_unless_records_contradict(
    appended_ms: int, ahead_ms: int
) -> None:
    clock = BrokersClock()
    clock.apply_read(None, 1_000, 1_010)
    clock.apply_read(appended_ms, 1_500, 1_510)
    assert clock.ahead_ms == ahead_ms
