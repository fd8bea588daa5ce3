"""Clients that ask for too much, at a gateway with a real broker and the coordinator: others do not wait."""

import asyncio
import math
import time
from contextlib import closing
from typing import Any

import pytest

from embedded.broker import EmbeddedBroker
from gateway.wire.framing import STRING_MAX_BYTES
from tests.e2e.gateway_clients import new_group
from tests.harness.gateway_requests import DESCRIBE, HEARTBEAT, JOIN, SYNC, join_fields
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.e2e

COORDINATOR_NOT_AVAILABLE, MEMBER_ID_REQUIRED = 15, 79
UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS = -1, 27
ATTACKERS, MEMBERS = 2, 10
GROUPS = 40_000
BEATS, BEAT_S = 10, 0.2
# Where each group of a request costs nothing, a heartbeat takes 12 s.
LATE_S = 6.0
SESSION_MS = 30_000


async def connected(gateway: str) -> RawClient:
    host, port = gateway.split(":")
    return RawClient(*await asyncio.open_connection(host, int(port)))


async def led(address: str) -> tuple[RawClient, dict[str, Any]]:
    """The leader of a group of its own that has no assignment yet, and the fields of its heartbeats."""
    client = await connected(address)
    fields = join_fields(group_id=new_group(), session_timeout_ms=SESSION_MS)
    first = await client.ask(JOIN, 9, **fields)
    assert first.error_code == MEMBER_ID_REQUIRED
    answer = await client.ask(JOIN, 9, **{**fields, "member_id": first.member_id})
    assert answer.error_code == 0
    return client, {"group_id": fields["group_id"], "generation_id": 1, "member_id": first.member_id}


async def synced(client: RawClient, member: dict[str, Any], assignment: bytes) -> int:
    """The error of the leader's SyncGroup."""
    assignments = [{"member_id": member["member_id"], "assignment": assignment}]
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    answer = await client.ask(SYNC, 5, **member, **named, assignments=assignments)
    assert answer.assignment == (b"" if answer.error_code else assignment)
    return int(answer.error_code)


async def joined(gateway: str) -> tuple[RawClient, dict[str, Any]]:
    """The only member of a group of its own, and the fields of its heartbeats."""
    client, member = await led(gateway)
    error = COORDINATOR_NOT_AVAILABLE
    while error == COORDINATOR_NOT_AVAILABLE:
        error = await synced(client, member, b"all")
    assert error == 0
    return client, member


async def beat(client: RawClient, member: dict[str, Any]) -> list[tuple[int, float]]:
    """The errors of heartbeats, and how long each took in seconds. One that the gateway has given up, because
    the coordinator did not answer it, took for ever.
    """
    outcomes = []
    for _ in range(BEATS):
        asked_s = time.monotonic()
        error = (await client.ask(HEARTBEAT, 4, **member)).error_code
        is_late = error == COORDINATOR_NOT_AVAILABLE
        outcomes.append((0, math.inf) if is_late else (error, time.monotonic() - asked_s))
        await asyncio.sleep(BEAT_S)
    return outcomes


async def attack(gateway: str, number: int, until: asyncio.Event) -> None:
    """Describe many groups, over and over. A connection that is closed is made again."""
    groups = [f"a{number}-{n}" for n in range(GROUPS)]
    while not until.is_set():
        client = await connected(gateway)
        await client.send(DESCRIBE, 5, groups=groups)
        answered = asyncio.ensure_future(client.receive_bytes())
        over = asyncio.ensure_future(until.wait())
        await asyncio.wait([answered, over], return_when=asyncio.FIRST_COMPLETED)
        for task in (answered, over):
            task.cancel()
        await asyncio.gather(answered, over, return_exceptions=True)
        client.writer.close()


def test_members_go_on_beside_clients_that_describe_many_groups(gateway: str) -> None:
    async def play() -> list[list[tuple[int, float]]]:
        members = await asyncio.gather(*(joined(gateway) for _ in range(MEMBERS)))
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(ATTACKERS):
                tasks.create_task(attack(gateway, number, over))
            outcomes = await asyncio.gather(*(beat(client, member) for client, member in members))
            over.set()
        for client, _ in members:
            client.writer.close()
        return outcomes

    of_members = asyncio.run(play())
    assert {error for outcomes in of_members for error, _ in outcomes} == {0}
    # One heartbeat of each may meet a pause of the whole machine.
    assert max(sorted(took_s for _, took_s in outcomes)[-2] for outcomes in of_members) < LATE_S


def test_a_join_that_the_coordinator_could_not_answer_is_refused_at_once(gateway: str) -> None:
    """A request about such a group had no answer for the client's rebalance timeout, here 24.8 days."""

    async def play() -> None:
        client = await connected(gateway)
        fields = {
            **join_fields(),
            "rebalance_timeout_ms": 2**31 - 1,
            "group_id": "g" * (STRING_MAX_BYTES + 1),
        }
        with closing(client.writer), pytest.raises(asyncio.IncompleteReadError):
            await client.ask(JOIN, 9, **fields)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("size", "codes"),
    [(1_700_000, [0]), (8_300_000, [0]), (9_600_000, [UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS])],
)
def test_large_assignment_has_the_codes_of_a_broker(
    broker: EmbeddedBroker, gateway: str, size: int, codes: list[int]
) -> None:
    """The broker's own limit is 8 MiB. Above both limits the error is final, and the next round begins."""

    async def codes_at(address: str) -> list[int]:
        client, member = await led(address)
        with closing(client.writer):
            return [await synced(client, member, bytes(size)) for _ in codes]

    async def play() -> list[list[int]]:
        return [await codes_at(address) for address in (broker.bootstrap_servers, gateway)]

    assert asyncio.run(play()) == [codes, codes]
