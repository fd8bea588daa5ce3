"""The load of `make bench` gets what it counts; here from a real broker's own coordinator."""

import asyncio
from contextlib import closing
from typing import Any

import pytest

from bench.apart import LoadFailed, apart
from bench.forming import Formed, form
from bench.heartbeats import Beats, LoadGenerator, Plan, measure_heartbeats
from bench.member import HEARTBEAT_INTERVAL_S, Group
from bench.passthrough import Limit, Passed, there_and_back
from bench.sides import Sides, wake
from bench.wire import WrongAnswer
from embedded.broker import EmbeddedBroker
from gateway.upstream.connections import Address
from records import kafka_clients

pytestmark = pytest.mark.e2e

GROUPS, CONNECTIONS, MEMBERS = 3, 8, 5


@pytest.fixture(scope="module")
def address(broker: EmbeddedBroker) -> Address:
    wake(broker.bootstrap_servers)
    return Address.parse(broker.bootstrap_servers)


def test_all_heartbeats_are_counted(address: Address) -> None:
    plan = Plan(turns=1, singles=4, load_s=0.2, connections=CONNECTIONS)
    for beats in apart(measure_heartbeats, Sides(address, address), GROUPS, plan):
        assert len(beats.singles_s) == plan.singles
        (rate,), (answered,) = beats.rates, beats.answered
        assert answered > CONNECTIONS
        assert answered / rate >= plan.load_s  # what was sent was waited for
        assert beats.client_cores[0] > 0


def test_a_heartbeat_with_an_error_is_no_figure(address: Address) -> None:
    async def load() -> None:
        generator = await LoadGenerator.formed(address, GROUPS, CONNECTIONS)
        beats = Beats()
        await generator.many(0, beats)
        assert beats.answered == [CONNECTIONS]
        await generator.groups[1].leave(generator.groups[1].members[0].connection)
        try:
            await generator.many(0, beats)
        finally:
            generator.close()

    with pytest.raises(WrongAnswer, match="not the response to a heartbeat"):
        asyncio.run(load())


def test_a_load_that_fails_fails_the_bench(capfd: pytest.CaptureFixture[str]) -> None:
    nobody = Address("127.0.0.1", 1)
    with pytest.raises(LoadFailed, match="measure_heartbeats"):
        apart(measure_heartbeats, Sides(nobody, nobody), 1, Plan(turns=0, singles=1, load_s=0))
    assert "Connect call failed" in capfd.readouterr().err


def test_a_group_that_is_formed_is_stable(address: Address) -> None:
    async def form_and_look() -> None:
        group = Group("bench-looked-at")
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
    with closing(kafka_clients.admin(str(address))) as admin:
        return admin.describe_groups([group_id])[group_id]


def test_one_more_is_waited_for(address: Address) -> None:
    formed = Formed()
    asyncio.run(form(address, MEMBERS, formed))
    assert formed.first_s[0] > 0
    # The last of the members learns of it almost a heartbeat interval later.
    assert formed.one_more_s[0] > HEARTBEAT_INTERVAL_S / 2


def test_records_go_there_and_back(address: Address) -> None:
    limit, passed = Limit(megabytes=2), Passed()
    assert there_and_back(address, limit, passed) == limit.records
    assert passed.produced[0] > 0
    assert passed.consumed[0] > 0
