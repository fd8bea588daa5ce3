"""How RocketMQ's clients handle their queues: offsets, locks, pauses."""

import pytest

from assignors.rocketmq.strategies import (
    AllocateMessageQueueAveragely,
    NamePrefixResolver,
    StrategySettings,
    strategy_named,
)
from clients.rocketmq.instance import PULL_MAX_IDLE_MS, GroupTaken
from tests.harness.simulated_rocketmq import A_MOMENT_MS, SimulatedRocketMq, consumer, queues_of


def test_offsets_go_with_their_queues() -> None:
    world = SimulatedRocketMq(t=2)
    first = world.start("A", consumer())
    world.run_for(A_MOMENT_MS)
    for number, queue in enumerate(queues_of("t", 2)):
        first.groups["g"].process_queues[queue].next_offset = 50 + number
    second = world.start("B", consumer())
    world.run_for(
        A_MOMENT_MS
    )  # the first client gives the queue up a second before the second client may take it
    (process,) = second.groups["g"].process_queues.values()
    assert process.next_offset == 51
    world.stop(first)
    assert world.stored["g", queues_of("t", 2)[0]] == 50


def test_orderly_queues_are_never_two_clients_at_once() -> None:
    world = SimulatedRocketMq(t=4)
    first = world.start("A", consumer(orderly=True))
    world.run_for(A_MOMENT_MS)
    second = world.start("B", consumer(orderly=True))
    for _ in range(40):
        world.run_for(250)
        held = [q for c in (first, second) for q in c.groups["g"].held("t")]
        assert len(held) == len(set(held))
    assert world.shares() == {"c1": [0, 1], "c2": [2, 3]}


def test_an_orderly_queue_is_consumed_only_while_its_lock_is_renewed() -> None:
    world = SimulatedRocketMq(t=1)
    client = world.start("A", consumer(orderly=True))
    world.run_for(A_MOMENT_MS)
    group, (queue,) = client.groups["g"], queues_of("t", 1)
    assert group.may_consume(queue, world.now_ms)
    world.run_for(60_000)
    assert group.may_consume(queue, world.now_ms)
    with world.unreachable():
        world.run_for(20_001)
        assert not group.may_consume(queue, world.now_ms)
    world.run_for(20_000)
    assert group.may_consume(queue, world.now_ms)


def test_a_killed_orderly_client_keeps_others_out_for_the_life_of_its_locks() -> None:
    world = SimulatedRocketMq(t=1)
    dead = world.start("A", consumer(orderly=True))
    world.run_for(A_MOMENT_MS)
    world.start("B", consumer(orderly=True))
    world.crash(dead, seen=True)
    world.run_for(50_000)
    assert world.shares() == {"c2": []}
    world.run_for(15_000)
    assert world.shares() == {"c2": [0]}


def test_a_queue_that_is_not_pulled_is_created_again() -> None:
    world = SimulatedRocketMq(t=1)
    client = world.start("A", consumer())
    world.run_for(A_MOMENT_MS)
    group, (queue,) = client.groups["g"], queues_of("t", 1)
    process = group.process_queues[queue]
    process.next_offset = 9
    world.run_for(PULL_MAX_IDLE_MS + 20_000)
    assert group.process_queues[queue] is not process
    assert group.process_queues[queue].next_offset == 9


def test_a_paused_consumer_is_never_balanced() -> None:
    world = SimulatedRocketMq(t=1)
    client = world.start("A", consumer())
    client.groups["g"].paused = True
    world.run_for(5_000)
    assert world.shares() == {"c1": []}
    assert client.due_ms <= world.now_ms + 1_000
    client.groups["g"].paused = False
    world.run_for(1_000)
    assert world.shares() == {"c1": [0]}


def test_s11_a_strategy_that_refuses_changes_nothing_and_is_asked_again_in_a_second() -> None:
    world = SimulatedRocketMq(t=1)
    of_no_room = strategy_named(
        "MACHINE_ROOM_NEARBY-AVG", StrategySettings(machine_room_resolver=NamePrefixResolver())
    )
    client = world.start("room-A", consumer(strategy=of_no_room))
    world.run_for(A_MOMENT_MS)
    assert world.shares() == {"c1": []}
    assert client.due_ms <= world.now_ms + 1_000
    client.groups["g"].config.strategy = AllocateMessageQueueAveragely()
    world.run_for(1_000)
    assert world.shares() == {"c1": [0]}


def test_the_same_group_twice_in_one_client_is_refused() -> None:
    with pytest.raises(GroupTaken, match=r"the consumer group\[g\] has been created before"):
        SimulatedRocketMq(t=1).start("A", consumer(), consumer())
