"""Forms groups of one member each at a coordinator that speaks Kafka's protocol."""

import asyncio
from collections.abc import Sequence

from bench.load.connection import Connection, expect_no_error
from bench.load.frames import OLD_JOIN, OLD_SYNC
from bench.load.requests import ASSIGNMENT, REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS, Membership
from kafka_why.connections.address import Address

CONNECTIONS = 16


async def form(
    address: Address, group_ids: Sequence[str], session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> list[Membership]:
    """Form all groups until they are Stable. Return their members in the order of `group_ids`."""
    to_form = list(enumerate(group_ids))[::-1]  # taken from the end
    members: dict[int, Membership] = {}

    async def work() -> None:
        connection = await Connection.open(address)
        try:
            while to_form:
                index, group_id = to_form.pop()
                members[index] = await _form(connection, group_id, session_timeout_ms)
        finally:
            connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(CONNECTIONS, len(group_ids))):
            tasks.create_task(work())
    return [members[index] for index in range(len(group_ids))]


async def _form(connection: Connection, group_id: str, session_timeout_ms: int) -> Membership:
    """Let a member join a new group and sync. Raises WrongAnswer."""
    joined = expect_no_error(
        await connection.ask(
            OLD_JOIN,
            group_id=group_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
    )
    member = Membership(group_id, joined.member_id, joined.generation_id)
    expect_no_error(
        await connection.ask(
            OLD_SYNC,
            group_id=group_id,
            generation_id=member.generation_id,
            member_id=member.member_id,
            assignments=[{"member_id": member.member_id, "assignment": ASSIGNMENT}],
        )
    )
    return member
