"""RocketMQ's clients with the real core: rounds, notifications, locks, and the failures of the design."""

from collections.abc import Sequence, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.rocketmq.strategies import AllocateMessageQueueAveragely, StrategySettings, strategy_named
from clients.rocketmq.instance import Schedule
from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue
from tests.harness.examples import examples
from tests.harness.simulated_rocketmq import A_MOMENT_MS, SimulatedRocketMq, consumer, pulled, queues_of


def test_s1_without_an_answer_to_the_heartbeat_the_first_round_is_the_timers() -> None:
    world = SimulatedRocketMq(t=4)
    with world.unreachable():
        client = world.start("A", consumer())
    assert client.due_ms <= 20_000
    world.run_for(19_999)
    assert world.shares() == {"c1": []}
    world.run_for(11_001)  # the timer's round finds no ids; the heartbeat at 30 s registers the client
    assert world.shares() == {"c1": [0, 1, 2, 3]}


def test_s2_a_round_comes_every_20_s() -> None:
    world = SimulatedRocketMq(t=4)
    world.start("A", consumer())
    world.run_for(A_MOMENT_MS)
    world.topics["t"] = 6  # no client is notified of new queues
    world.run_for(17_000)
    assert world.shares() == {"c1": [0, 1, 2, 3]}
    world.run_for(3_000)
    assert world.shares() == {"c1": [0, 1, 2, 3, 4, 5]}


def test_s3_wake_ups_coalesce_and_wait_for_a_second_between_rounds() -> None:
    schedule = Schedule(0)
    assert schedule.due_ms == 20_000
    schedule.ran(5_000, balanced=True)
    schedule.wake(5_100)
    schedule.wake(5_200)
    assert schedule.due_ms == 6_000  # the wake-up is neither lost nor early
    schedule.ran(6_000, balanced=True)
    assert schedule.due_ms == 26_000
    schedule.wake(20_000)
    assert schedule.due_ms == 20_000
    schedule.ran(20_000, balanced=False)
    assert schedule.due_ms == 21_000


class Broken:
    """A listener that fails for one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.calls: list[str] = []

    def __call__(self, topic: str, mq_all: Set[MessageQueue], mq_divided: Set[MessageQueue]) -> None:
        self.calls.append(topic)
        if topic == self.topic:
            raise ValueError("this topic fails")


def test_s4_s5_a_topic_and_a_group_that_fail_do_not_stop_the_others() -> None:
    world = SimulatedRocketMq(t=2, u=2, v=2)
    listener = Broken("t")
    world.start("A", consumer("g", "t", "u", listener=listener), consumer("h", "v"))
    world.run_for(A_MOMENT_MS)
    assert listener.calls == ["t", "u"]
    assert world.shares("u") == world.shares("v") == {"c1": [0, 1]}


def test_s5_queues_of_topics_no_longer_subscribed_to_go_as_they_are() -> None:
    world = SimulatedRocketMq(t=2, u=2)
    client = world.start("A", consumer("g", "t", "u"))
    world.run_for(A_MOMENT_MS)
    world.stored.clear()
    group = client.groups["g"]
    del group.config.subscriptions["u"]
    group.do_rebalance(world.now_ms)
    assert {queue.topic for queue in group.process_queues} == {"t"}
    assert not world.stored


def test_s6_an_unknown_topic_allocates_nothing_and_keeps_what_is_held() -> None:
    world = SimulatedRocketMq(t=2)
    calls: list[tuple[Set[MessageQueue], Set[MessageQueue]]] = []
    world.start("A", consumer(listener=lambda _, mq_all, mine: calls.append((mq_all, mine))))
    world.run_for(A_MOMENT_MS)
    assert calls == [(set(queues_of("t", 2)), set(queues_of("t", 2)))]
    del world.topics["t"]
    world.run_for(20_000)
    assert world.shares() == {"c1": [0, 1]}
    assert calls[1:] == [(frozenset(), frozenset())]


def test_s8_an_error_of_the_broker_keeps_what_is_held_and_counts_as_balanced() -> None:
    world = SimulatedRocketMq(t=2)
    client = world.start("A", consumer())
    world.run_for(A_MOMENT_MS)
    with world.unreachable():
        assert client.groups["g"].do_rebalance(world.now_ms)
    assert world.shares() == {"c1": [0, 1]}


def test_s9_ids_are_sorted_as_java_sorts_them() -> None:
    world = SimulatedRocketMq(t=3)
    for client_id in ("\uff01", "\U0001f600", "a"):
        world.start(client_id, consumer())
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": [2], "c2": [1], "c3": [0]}


class Recording(AllocateMessageQueueAveragely):
    """A strategy that records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        self.calls.append((consumer_group, current_cid, mq_all, cid_all))
        return super().allocate(consumer_group, current_cid, mq_all, cid_all)


def test_s11_every_client_asks_the_strategy_the_same_but_for_its_own_id() -> None:
    world = SimulatedRocketMq(t=4)
    strategies = {client_id: Recording() for client_id in ("A", "B")}
    for client_id, strategy in strategies.items():
        world.start(client_id, consumer(strategy=strategy))
    world.run_for(A_MOMENT_MS)
    for client_id, strategy in strategies.items():
        assert strategy.calls[-1] == ("g", client_id, queues_of("t", 4), ["A", "B"])


def test_s1_s12_s17_clients_share_the_queues_as_soon_as_another_starts() -> None:
    """The heartbeat comes before the first round. A notification wakes the clients that were there before."""
    world = SimulatedRocketMq(t=7)
    first = world.start("A", consumer())
    assert [entry.type for entry in world.history][1] is EntryType.CONSUMER_CONNECTED
    assert world.shares() == {"c1": []}
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": [*range(7)]}
    assert first.due_ms > world.now_ms + 1_000
    world.start("B", consumer())
    assert first.due_ms == world.now_ms
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": [0, 1, 2, 3], "c2": [4, 5, 6]}
    world.start("C", consumer())
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": [0, 1, 2], "c2": [3, 4], "c3": [5, 6]}


@pytest.mark.parametrize(
    ("name", "shares", "unread"),
    [
        ("AVG", [0, 1], {2, 3}),
        ("AVG_BY_CIRCLE", [0, 2], {1, 3}),
        ("CONSISTENT_HASH", [0, 1, 2, 3], set()),
    ],
)
def test_s18_two_clients_of_one_id_take_the_same_share(
    name: str, shares: list[int], unread: set[int]
) -> None:
    world = SimulatedRocketMq(t=4)
    for _ in range(2):
        world.start("X", consumer(strategy=strategy_named(name, StrategySettings())))
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": shares, "c2": shares}
    assert {0, 1, 2, 3} - set(shares) == unread
    assert EntryType.DUPLICATE_CLIENT_ID in [entry.type for entry in world.history]


deeds = st.lists(
    st.tuples(
        st.sampled_from(("start", "start", "stop", "crash", "lose", "deliver", "queues")),
        st.integers(0, 5),
        st.sampled_from((0, 300, 1_000, 5_000, 30_000)),
    ),
    max_size=15,
)
STRATEGIES = st.sampled_from(("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"))


@given(deeds, STRATEGIES, st.booleans())
@examples(60)
def test_s19_whatever_happened_and_was_not_heard_of_shares_become_a_partition(
    script: Sequence[tuple[str, int, int]], name: str, orderly: bool
) -> None:
    world = SimulatedRocketMq(t=5)
    for place, (deed, number, wait_ms) in enumerate((("start", 0, 0), *script)):
        if deed == "start":
            strategy = strategy_named(name, StrategySettings())
            world.start(f"client-{place}", consumer(strategy=strategy, orderly=orderly))
        _do(world, deed, number)
        world.run_for(wait_ms)
        pulled(world)
    # A silent death is found after 130 s, a lock expires after 60 s, a round comes every 20 s.
    for _ in range(20):
        world.run_for(10_000)
        pulled(world)
    if world.clients:
        held = sorted(number for share in world.shares().values() for number in share)
        assert held == list(range(world.topics["t"]))


def _do(world: SimulatedRocketMq, deed: str, number: int) -> None:
    alive = list(world.clients.values())
    match deed:
        case "stop" if alive:
            world.stop(alive[number % len(alive)])
        case "crash" if alive:
            world.crash(alive[number % len(alive)], seen=number % 2 == 0)
        case "lose" | "deliver":
            world.notifications_are_lost = deed == "lose"
        case "queues":
            world.topics["t"] = number + 1
