"""A large request takes the event loop in short steps only, and has the same outcome as a small one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey

from gateway import apis
from gateway.apis.slices import Slices, run_at_once
from gateway.apis.topics import Outcomes, RequestedTopic
from gateway.authorization.acls import Operation, ResourceType
from gateway.fairness import CapacityLimiter
from gateway.running import LONG_STEP_S
from gateway.upstream.share_groups import Coordinators
from gateway.wire import codec, offload
from gateway.wire.framing import framed, request_header
from kafka_why.contract.kafka.requests import Heartbeat, OffsetCommit
from kafka_why.contract.kafka.responses import PartitionError
from kafka_why.contract.messages import ErrorCode
from kafka_why.wire.schema_reader import ELEMENTS_MAX
from tests.harness.gateway import (
    COMMIT,
    HEARTBEAT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    GatewayFixture,
    Right,
    outcomes,
    played,
    stable,
    topic_id,
)
from tests.harness.share_frames import FETCH as SHARE_FETCH
from tests.harness.share_frames import finds_share_groups
from tests.harness.waiting import asynchronous
from tests.unit.gateway.test_gateway_numbers import use_processor

TXN_COMMIT, METADATA = 28, 3
MARGIN = 3
"""A busy machine takes more processor time for the same work."""


def commit(*topics: tuple[str, range]) -> dict[str, Any]:
    def partition(index: int) -> dict[str, Any]:
        return {"partition_index": index, "committed_offset": index, "committed_metadata": ""}

    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": name, "partitions": [partition(p) for p in indexes]} for name, indexes in topics],
    }


def names(number: int) -> Iterator[str]:
    """Of no topic that a broker could have: none is asked."""
    return (f"no/{n}" for n in range(number))


LARGE = ["topics of a commit", "partitions of a commit", "topics in a transaction", "topics of a deletion"]


def large(kind: str) -> tuple[int, int, dict[str, Any]]:
    """Return a request with as many entries as one may have, which the coordinator does not get."""
    many, some = ELEMENTS_MAX - 10, ELEMENTS_MAX // 2 - 10
    if kind == "partitions of a commit":
        return COMMIT, 8, commit(("orders", range(3, many)))
    if kind == "topics of a deletion":
        deleted = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names(some)]
        return OFFSET_DELETE, 0, {"group_id": "g", "topics": deleted}
    of_topics = commit(*((name, range(1)) for name in names(some)))
    if kind == "topics of a commit":
        return COMMIT, 8, of_topics
    producer = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 1, "generation_id": -1}
    return TXN_COMMIT, 3, producer | {"group_id": "g", "member_id": "", "topics": of_topics["topics"]}


def refused(topics: Sequence[str]) -> dict[str, tuple[int, int, dict[str, Any]]]:
    """Return requests with half as many partitions as one may have, most of them of the last of these
    topics.
    """
    *few, last = topics

    def of(key: str, partition: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        id_or_name: Any = topic_id if key == "topic_id" else str
        numbers = {**{one: range(1) for one in few}, last: range(ELEMENTS_MAX // 2)}
        return [
            {key: id_or_name(one), "partitions": [partition(n) for n in some]}
            for one, some in numbers.items()
        ]

    fetch: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "isolation_level": 0,
    }
    fetch |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    nothing = {"current_leader_epoch": -1, "log_start_offset": -1}
    fetched = of("topic", lambda n: {"partition": n, "fetch_offset": 0, "partition_max_bytes": 1, **nothing})
    listed = of("name", lambda n: {"partition_index": n, "timestamp": 0})
    shared = of("topic_id", lambda n: {"partition_index": n, "acknowledgement_batches": []})
    member: dict[str, Any] = {"group_id": "g", "member_id": "m", "share_session_epoch": 0}
    return {
        "Fetch": (ApiKey.Fetch, 11, fetch | {"topics": fetched}),
        "ListOffsets": (ApiKey.ListOffsets, 1, {"replica_id": -1, "topics": listed}),
        "ShareFetch": (SHARE_FETCH, 2, member | {"topics": shared}),
    }


READER: list[Right] = [
    (Operation.ALL, ResourceType.GROUP, "g"),
    (Operation.ALL, ResourceType.TOPIC, "orders"),
]


async def longest_turn_s(work: Awaitable[Any]) -> float:
    """Return the most processor time of a turn of the event loop until the work is done."""
    task, longest_s = asyncio.ensure_future(work), 0.0
    while not task.done():
        began_s = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - began_s)
    await task
    return longest_s


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", LARGE)
@played
async def test_request_with_many_entries_does_not_block_the_event_loop(
    world: GatewayFixture, kind: str
) -> None:
    client, (api_key, version, body) = await world.client(), large(kind)
    await client.ask(COMMIT, 8, **commit(("orders", range(1))))  # the broker was asked about the topic
    await client.send_bytes(framed(codec.encode_request(api_key, version, 1, "me", body)))
    assert await longest_turn_s(client.receive_bytes()) <= MARGIN * LONG_STEP_S


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("kind", "topics"),
    [("ListOffsets", ["prices"]), ("Fetch", ["orders", "prices"]), ("ShareFetch", ["orders", "prices"])],
)
@played(rights=READER, share_groups=Coordinators.BROKERS)
async def test_refusing_many_partitions_does_not_block_the_event_loop(
    world: GatewayFixture, kind: str, topics: list[str]
) -> None:
    """Those of prices are. With orders beside it the broker is asked, and its response changed."""
    client = await finds_share_groups(world)
    api_key, version, body = refused(topics)[kind]
    world.broker.answers[api_key] = {"topics": []} if kind == "ListOffsets" else {"error_code": 0}
    await client.send_bytes(framed(codec.encode_request(api_key, version, 1, "me", body)))
    assert await longest_turn_s(client.receive_bytes()) <= MARGIN * LONG_STEP_S


@pytest.mark.usefixtures("no_collector")
@played
async def test_many_pipelined_small_requests_do_not_block_the_event_loop(world: GatewayFixture) -> None:
    client = await world.client()
    frames = [
        framed(codec.encode_request(ApiKey.FindCoordinator, 4, n, "me", {"coordinator_keys": [f"group-{n}"]}))
        for n in range(5_000)
    ]

    async def receive_all() -> None:
        for _ in frames:
            await client.receive_bytes()

    await client.send_bytes(b"".join(frames))
    assert await longest_turn_s(receive_all()) <= MARGIN * LONG_STEP_S


@played
async def test_large_commit_is_authorized_for_each_partition(world: GatewayFixture) -> None:
    world.broker.topics["orders"] = 3_000
    asked = commit(("orders", range(2_000)), ("nowhere", range(2)), ("orders", range(2_999, 3_001)))
    assert len(codec.encode_request(COMMIT, 8, 1, "me", asked)) > offload.AT_ONCE_BYTES
    found = outcomes(await world.ask(COMMIT, 8, **asked))
    valid = [("orders", index, 0) for index in [*range(2_000), 2_999]]
    assert sorted(found) == sorted([*valid, ("nowhere", 0, 3), ("nowhere", 1, 3), ("orders", 3_000, 3)])
    wanted = [{"name": "orders", "partition_indexes": list(range(2_500))}]
    fetched = await world.ask(OFFSET_FETCH, 7, group_id="g", topics=wanted)
    offsets = [p.committed_offset for p in fetched.topics[0].partitions]
    assert offsets == [*range(2_000), *[-1] * 500]
    deleted = [{"name": "orders", "partitions": [{"partition_index": n} for n in range(2_999, 6_000)]}]
    errors = outcomes(await world.ask(OFFSET_DELETE, 0, group_id="g", topics=deleted))
    assert sorted(errors) == [("orders", n, 0 if n < 3_000 else 3) for n in range(2_999, 6_000)]


@played
async def test_requests_pipelined_after_a_large_one_start_after_it(world: GatewayFixture) -> None:
    world.broker.topics["orders"] = 5_000
    client = await world.client()
    member_id = await stable(world, client)
    world.core.asked.clear()
    mine = {"member_id": member_id, "generation_id_or_member_epoch": 1}
    beat = {"group_id": "g", "member_id": member_id, "generation_id": 1}
    sent = [
        await client.send(COMMIT, 8, **commit(("orders", range(5_000))) | mine),
        await client.send(HEARTBEAT, 4, **beat),
        await client.send(COMMIT, 8, **commit(("orders", range(1))) | mine),
    ]
    answers = [await client.receive() for _ in sent]
    assert [number for number, _ in answers] == sent
    first, second, third = world.core.asked
    assert isinstance(first, OffsetCommit)
    assert isinstance(second, Heartbeat)
    assert isinstance(third, OffsetCommit)
    assert [len(one.topics[0].partitions) for one in (first, third)] == [5_000, 1]


@asynchronous
async def test_each_loop_iteration_runs_one_slice_whatever_the_number_of_requests() -> None:
    def steps() -> Iterator[None]:
        for _ in range(10):
            use_processor(0.003)
            yield

    # The first slices are all in one turn.
    turns = CapacityLimiter(1)
    tasks = [asyncio.ensure_future(Slices(turns).run(steps())) for _ in range(20)]
    await asyncio.sleep(0)
    assert await longest_turn_s(asyncio.wait(tasks)) < 0.003 * 5


decided = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.builds(PartitionError, st.integers(0, 9), st.just(ErrorCode.NONE))),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9))), decided)
@asynchronous
async def test_authorization_in_slices_gives_the_same_result(
    refused: list[tuple[str, int]], answered: list[tuple[str, list[PartitionError]]]
) -> None:
    def begun() -> Outcomes:
        made = Outcomes()
        for name, partition in refused:
            made.add_all(RequestedTopic(name, None, None), [partition], ErrorCode.INVALID_REQUEST)
        return made

    topics = [(RequestedTopic(name, None, None), errors) for name, errors in answered]
    whole, sliced = begun(), begun()
    run_at_once(whole.merge(topics))
    await Slices(CapacityLimiter(1)).run(sliced.merge(topics))
    assert sliced.topics == whole.topics
    asked = len(refused) + sum(len(errors) for _, errors in answered)
    assert sum(len(topic["partitions"]) for topic in whole.topics) == asked


@pytest.mark.parametrize("topics", [[("orders", range(3_000))], [(name, range(1)) for name in names(1_500)]])
def test_decoding_in_slices_gives_the_same_request(topics: list[tuple[str, range]]) -> None:
    message = codec.encode_request(COMMIT, 8, 1, "me", commit(*topics))
    header, pauses = request_header(message), list[None]()
    decode = apis.SERVED[header.api_key].decode
    paused = decode(header, message, lambda: pauses.append(None))
    assert len(pauses) >= 10
    assert paused.encode() == decode(header, message, None).encode() == message[-len(paused.encode()) :]


@pytest.mark.parametrize(
    "topics", [None, [], [{"name": "a", "topic_id": None}, {"name": None, "topic_id": topic_id("a")}]]
)
def test_gateways_metadata_request_equals_that_of_the_general_codec(topics: Any) -> None:
    for body in ({"topics": topics}, {"topics": topics, "allow_auto_topic_creation": False}):
        general = codec.encode_request(METADATA, 12, 7, "gateway", body)
        assert codec.encode_frequent(METADATA, 12, 7, "gateway", body) == general


def test_entries_of_a_response_decide_if_it_counts_as_long() -> None:
    half = offload.LONG // 2
    flat = {"topics": [{"partitions": [{"p": n} for n in range(offload.LONG - 1)]}]}
    deep = {"topics": [{"partitions": [{"p": n} for n in range(half)]} for _ in range(3)]}
    assert not offload.is_long(flat)
    assert offload.is_long(deep)
    assert offload.is_long({"topics": [{"partitions": list(range(offload.LONG))}]})
    assert not offload.is_long({"error_code": 0, "topics": []})
