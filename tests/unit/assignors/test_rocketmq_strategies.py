"""Properties of any group under RocketMQ's strategies, and rules that the vectors do not cover."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.rocketmq.api import IllegalArgumentException
from assignors.rocketmq.strategies import (
    ALL_QUEUES_OF_BROKER,
    AllocateMessageQueueAveragely,
    HashRing,
    allocate_for_pop,
)
from kafka_why.contract.rocketmq.requests import MessageQueue, sort_client_ids, sort_queues
from tests.unit.assignors.test_rocketmq_vectors import NEARBY, strategy_named

# Every name contains a room for MACHINE_ROOM_NEARBY and one for MACHINE_ROOM.
ROOMS = st.sampled_from(["r1", "r2", "r3"])
BROKERS = st.builds("{}-@{}".format, ROOMS, st.sampled_from("ab"))
QUEUES = st.lists(
    st.builds(MessageQueue, st.just("t"), BROKERS, st.integers(0, 20)), min_size=1, max_size=24, unique=True
).map(sort_queues)
NAMES = st.text("ab1@\N{HALFWIDTH WHITE CIRCLE}\N{GRINNING FACE}", min_size=1, max_size=3)
CLIENTS = st.lists(st.builds("{}-{}".format, ROOMS, NAMES), min_size=1, max_size=8, unique=True).map(
    sort_client_ids
)

PARTITIONING = ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM"]


def shares(name: str, queues: list[MessageQueue], clients: list[str]) -> list[list[MessageQueue]]:
    strategy = strategy_named(name, {"r1-", "r2-", "r3-"})
    assert strategy.name == name
    return [strategy.allocate(client_id, queues, clients) or [] for client_id in clients]


@pytest.mark.parametrize("name", [*PARTITIONING, *(NEARBY + name for name in PARTITIONING)])
@given(queues=QUEUES, clients=CLIENTS)
def test_every_queue_is_assigned_once(name: str, queues: list[MessageQueue], clients: list[str]) -> None:
    dealt = shares(name, queues, clients)
    assert Counter(queue for share in dealt for queue in share) == Counter(queues)


@given(
    queues=QUEUES, clients=CLIENTS, strategy=st.sampled_from(["AVG", "AVG_BY_CIRCLE"]), shared=st.integers()
)
def test_pop_assigns_every_queue_and_serves_every_client(
    queues: list[MessageQueue], clients: list[str], strategy: str, shared: int
) -> None:
    rule = strategy_named(strategy, ())
    dealt = [allocate_for_pop(rule, client_id, queues, clients, shared) for client_id in clients]
    assert all(dealt)
    got = {queue for share in dealt for queue in share}
    if 0 < shared < len(clients) - 1:
        assert got == set(queues)
    else:
        assert got == {queue._replace(queue_id=ALL_QUEUES_OF_BROKER) for queue in queues}


def popped(client_id: str | None, count: int, clients: list[str], shared: int) -> list[int]:
    rule = AllocateMessageQueueAveragely()
    share = allocate_for_pop(
        rule, client_id, [MessageQueue("t", "b", n) for n in range(count)], clients, shared
    )
    return [queue.queue_id for queue in share]


@pytest.mark.parametrize(
    ("client_id", "count", "clients", "shared", "numbers"),
    [
        ("c", 6, "abc", 1, [4, 5, 0, 1]),
        ("b", 2, "abcd", 1, [1]),
        ("d", 2, "abcd", 1, [1]),
        # A stranger gets everything where all share.
        ("stranger", 2, "abc", 2, [ALL_QUEUES_OF_BROKER] * 2),
        ("stranger", 2, "", 0, [ALL_QUEUES_OF_BROKER] * 2),
        ("stranger", 6, "abc", 1, []),
        ("stranger", 2, "abc", 1, []),
        # Java does not call it blank.
        ("\N{NO-BREAK SPACE}", 1, "abc", 1, []),
    ],
)
def test_pop_assigns_a_client_the_queues_of_preceding_clients_too(
    client_id: str, count: int, clients: str, shared: int, numbers: list[int]
) -> None:
    assert popped(client_id, count, list(clients), shared) == numbers


@pytest.mark.parametrize("client_id", [None, "", " \t"])
def test_pop_refuses_a_blank_client_id(client_id: str | None) -> None:
    with pytest.raises(IllegalArgumentException, match=r"^currentCID is empty$"):
        popped(client_id, 1, ["a", "b", "c"], 1)


def test_duplicate_client_id_adds_new_points_to_the_hash_ring() -> None:
    hashed: list[str] = []

    def hash_function(key: str) -> int:
        hashed.append(key)
        return 7 if key in {"a-1", "b-0"} else len(hashed) * 10

    ring = HashRing(["a", "b", "a"], 2, hash_function)
    assert hashed == ["a-0", "a-1", "b-0", "b-1", "a-1", "a-2"]
    assert ring.owner("key") == "a"  # 70 is beyond the last point, so the first one owns it: 7, a's again
