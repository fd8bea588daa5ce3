"""Memory of requests that the coordinator parks, and of those that it could not answer."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.net.limits.requests import ParkedMemoryLimit
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import JOIN, join_fields
from tests.harness.waiting import until
from tests.unit.gateway.test_pipelining import nothing_more, until_asked

COORDINATOR_NOT_AVAILABLE = 15


async def parked(world: GatewayFixture, group_id: str, metadata_bytes: int) -> tuple[RawClient, int]:
    """As `join`, when it is parked."""
    before = len(world.core.asked)
    client, number = await join(world, group_id, metadata_bytes)
    await until_asked(world, before + 1)
    return client, number


async def join(world: GatewayFixture, group_id: str, metadata_bytes: int) -> tuple[RawClient, int]:
    """Return a client that has sent a JoinGroup about a group of its own."""
    client = await world.client()
    protocols = [{"name": "range", "metadata": b"m" * metadata_bytes}]
    fields = {**join_fields(), "group_id": group_id, "protocols": protocols, "protocol_type": "other"}
    return client, await client.send(JOIN, 3, **fields)


@played(parked_bytes=100_000)
async def test_largest_parked_request_is_evicted_when_memory_runs_out(world: GatewayFixture) -> None:
    members = [await parked(world, f"g-{n}", 1_000) for n in range(50)]
    attacker, number = await join(world, "large", 60_000)
    answered, answer = await attacker.receive()
    assert (answered, answer.error_code) == (number, COORDINATOR_NOT_AVAILABLE)
    await nothing_more(world, 50)
    world.core.advance(3_000)
    for client, number in members:
        answered, answer = await client.receive()
        assert (answered, answer.error_code) == (number, 0)


@played
async def test_parked_request_is_removed_when_its_connection_closes(world: GatewayFixture) -> None:
    client, _ = await parked(world, "g", 1_000)
    (counted,) = world.gateway.numbers()["parked_bytes"][()]
    assert counted > 1_000
    client.writer.transport.abort()
    await until(lambda: not world.core.waiting)
    await until(lambda: world.gateway.numbers()["parked_bytes"] == {(): [0]})


SIZES = st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=60)


@given(SIZES, st.integers(1, 1_000))
def test_request_not_above_the_mean_is_not_evicted(sizes: list[tuple[int, bool]], bound: int) -> None:
    parked = ParkedMemoryLimit(bound)
    here: dict[int, tuple[int, int]] = {}

    def enter(name: int, size: int) -> None:
        def give_up() -> None:
            assert here[name][1] > bound / len(here)
            parked.remove(here.pop(name)[0])

        here[name] = parked.add(size, give_up), size

    for name, (size, leaves) in enumerate(sizes):
        enter(name, size)
        parked.shrink()
        if leaves and here:
            parked.remove(here.pop(next(iter(here)))[0])
        assert parked.bytes == sum(size for _, size in here.values()) <= bound
