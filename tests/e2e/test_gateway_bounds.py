"""Assignments near the bounds, at a gateway with the coordinator and at a broker."""

import asyncio

import pytest

from embedded.broker import EmbeddedBroker
from tests.e2e.gateway_clients import new_group
from tests.harness.gateway_requests import JOIN, SYNC, join_fields
from tests.harness.raw_client import connected

pytestmark = pytest.mark.e2e


UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS = -1, 27
SESSION_MS = 30_000


async def codes_at(address: str, assignment: bytes, times: int) -> list[int]:
    """Return the errors of SyncGroups of the leader of a group of its own."""
    async with connected(address) as client:
        fields = join_fields(group_id=new_group(), session_timeout_ms=SESSION_MS)
        member_id = (await client.ask(JOIN, 9, **fields)).member_id
        joined = await client.ask(JOIN, 9, **{**fields, "member_id": member_id})
        member = {"group_id": fields["group_id"], "generation_id": 1, "member_id": member_id}
        assert joined.error_code == 0
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        assigned = [{"member_id": member_id, "assignment": assignment}]
        answers = [await client.ask(SYNC, 5, **member, **named, assignments=assigned) for _ in range(times)]
        assert {answer.assignment for answer in answers if not answer.error_code} <= {assignment}
        return [int(answer.error_code) for answer in answers]


@pytest.mark.parametrize(
    ("size", "codes"),
    [(1_700_000, [0]), (8_300_000, [0]), (9_600_000, [UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS])],
)
def test_large_assignment_has_the_codes_of_a_broker(
    broker: EmbeddedBroker, gateway: str, size: int, codes: list[int]
) -> None:
    """The broker's own limit is 8 MiB. Above both limits the error is final, and the next round begins."""
    for address in (broker.bootstrap_servers, gateway):
        assert asyncio.run(codes_at(address, bytes(size), len(codes))) == codes
