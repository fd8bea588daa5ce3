"""The load of `make bench` gets what it counts; here from a real broker's own coordinator."""

import asyncio
import uuid
from contextlib import closing
from typing import Any

import pytest

from bench.load import kafka_groups
from bench.load.connection import Connection
from bench.load.frames import LEAVE
from bench.load.load_result import LoadResult
from bench.load.member import HEARTBEAT_INTERVAL_S, LoadGroup
from bench.load.pipes import run_at_rates, run_closed_loop
from bench.rows.joining import JoinTimes, form
from bench.rows.passthrough import ThroughputTurns, TurnLimit, there_and_back
from bench.rows.settling import PARTITIONS_EACH, PROTOCOLS, settle
from bench.rows.through_gateway import connected
from bench.separate_process import LoadFailed, call_in_process
from bench.systems import prepare
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from tests.e2e.harness import create_topic

pytestmark = pytest.mark.e2e

GROUPS, CONNECTIONS, MEMBERS = 3, 8, 5
UNKNOWN_MEMBER_ID = 25


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> Address:
    prepare(broker.bootstrap_servers)
    return Address.parse(broker.bootstrap_servers)


async def loads(address: Address, *, leaves: bool) -> list[LoadResult]:
    """Return a closed and an open load of GROUPS groups. The member of one of them may leave before."""
    ids = [f"bench-{uuid.uuid4()}" for _ in range(GROUPS)]
    members = await kafka_groups.form(address, ids)
    if leaves:
        connection = await Connection.open(address)
        leaving = [{"member_id": members[0].member_id, "reason": None}]
        await connection.ask(LEAVE, group_id=ids[0], members=leaving)
        connection.close()
    pipes = await connected(address, members, CONNECTIONS)
    outcomes = [await run_closed_loop(pipes, 4, 1.0), await run_at_rates(pipes, [(400, 0.2)])]
    for pipe in pipes:
        pipe.close()
    return outcomes


def test_bench_counts_answered_heartbeats_and_commits(address: Address) -> None:
    closed_loop, open_loop = asyncio.run(loads(address, leaves=False))
    assert closed_loop.responses > 4 * CONNECTIONS
    assert open_loop.responses == pytest.approx(80, abs=1)
    assert not closed_loop.errors
    assert not open_loop.errors
    assert closed_loop.client_cores > 0


def test_bench_counts_errors_by_code(address: Address) -> None:
    closed_loop, open_loop = asyncio.run(loads(address, leaves=True))
    for outcome in (closed_loop, open_loop):
        assert outcome.errors.keys() == {UNKNOWN_MEMBER_ID}
        assert 0 < outcome.errors.total() < outcome.responses


def nowhere() -> None:
    asyncio.run(kafka_groups.form(Address("127.0.0.1", 1), ["g"]))


def test_failed_load_fails_the_bench(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LoadFailed, match="nowhere"):
        call_in_process(nowhere)
    assert "Connect call failed" in capfd.readouterr().err


def test_bench_forms_stable_groups(address: Address) -> None:
    async def form_and_look() -> None:
        group = LoadGroup(f"bench-{uuid.uuid4()}")
        members = [await group.add(address) for _ in range(MEMBERS)]
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(member.live()) for member in members]
            await group.formed_at_s()
            described = await asyncio.to_thread(describe, address, group.group_id)
            for task in living:
                task.cancel()
        group.close()
        assert described["group_state"] == "Stable"
        assert {m["member_id"] for m in described["members"]} == {m.member_id for m in members}

    asyncio.run(form_and_look())


def describe(address: Address, group_id: str) -> Any:
    with closing(kafka_clients.admin(ClientConfig(str(address)))) as admin:
        return admin.describe_groups([group_id])[group_id]


def test_bench_round_waits_for_the_late_member(address: Address) -> None:
    formed = JoinTimes()
    asyncio.run(form(address, MEMBERS, formed, one_more=True))
    assert formed.formed_s[0] > 0
    # The last of the members learns of it almost a heartbeat interval later.
    assert formed.one_more_s[0] > HEARTBEAT_INTERVAL_S / 2


def test_bench_consumes_every_record_it_produces(address: Address) -> None:
    limit, passed = TurnLimit(megabytes=2), ThroughputTurns()
    assert there_and_back(address, limit, passed) == limit.records
    assert passed.produced[0] > 0
    assert passed.consumed[0] > 0


def test_bench_group_settles_after_a_join_in_each_protocol(broker: EmbeddedBroker, address: Address) -> None:
    """The measured groups are complete in the end, or this would not return."""
    topic = f"settling-{uuid.uuid4()}"
    create_topic(broker.client_config, topic, MEMBERS * PARTITIONS_EACH, {})

    async def all_protocols() -> list[float]:
        return await asyncio.gather(*(settle(address, one, topic, MEMBERS) for one in PROTOCOLS))

    assert min(asyncio.run(all_protocols())) > 0
