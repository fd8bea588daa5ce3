"""What ACLs forbid at the gateway: each API of groups, and that it does not reach the coordinator.
`tests/conformance/scripts/acls.txt` compares each version with a real broker, field by field.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.authorization.acls import Operation, ResourceType
from tests.harness.gateway import GatewayFixture, played
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    commit_fields,
    join_fields,
)

FIND = 10
TOPIC_REFUSED, GROUP_REFUSED = 29, 30
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}
COMMITTED = commit_fields("", ("orders", 0, 7), ("prices", 0, 7))
FETCHED = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0]}]}


def errors_in(answer: Any) -> Iterator[int]:
    """Yield the error codes of an answer, wherever it has them."""
    if isinstance(answer, dict):
        yield from (value for name, value in answer.items() if name == "error_code")
    if isinstance(answer, dict | list):
        for value in answer.values() if isinstance(answer, dict) else answer:
            yield from errors_in(value)


# A request, and the operation on the group that it needs.
REQUESTS: list[tuple[int, int, dict[str, Any], Operation]] = [
    (COMMIT, 9, COMMITTED, Operation.READ),
    (OFFSET_FETCH, 7, FETCHED, Operation.DESCRIBE),
    (OFFSET_FETCH, 9, {"groups": [FETCHED]}, Operation.DESCRIBE),
    (FIND, 3, {"key": "g"}, Operation.DESCRIBE),
    (FIND, 6, {"coordinator_keys": ["g"]}, Operation.DESCRIBE),
    (JOIN, 9, join_fields(), Operation.READ),
    (HEARTBEAT, 4, BEAT, Operation.READ),
    (LEAVE, 2, {"group_id": "g", "member_id": "m"}, Operation.READ),
    (LEAVE, 5, {"group_id": "g", "members": [{"member_id": "m"}]}, Operation.READ),
    (SYNC, 5, {**BEAT, "protocol_type": "consumer", "protocol_name": "range"}, Operation.READ),
    (DESCRIBE, 6, {"groups": ["g"]}, Operation.DESCRIBE),
    (DELETE_GROUPS, 2, {"groups_names": ["g"]}, Operation.DELETE),
    (OFFSET_DELETE, 0, {"group_id": "g", "topics": []}, Operation.DELETE),
]
NOT_DESCRIBING = {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.CREATE}


@pytest.mark.parametrize(("api_key", "version", "fields", "operation"), REQUESTS)
@played(rights=[])
async def test_group_request_needs_the_matching_operation_on_the_group(
    world: GatewayFixture, api_key: int, version: int, fields: dict[str, Any], operation: Operation
) -> None:
    others = NOT_DESCRIBING if operation is Operation.DESCRIBE else {*Operation} - {operation, Operation.ALL}
    world.allow(*((one, GROUP, "g") for one in others))
    answer = await world.ask(api_key, version, **fields)
    assert {*errors_in(answer.to_dict())} - {0} == {GROUP_REFUSED}
    assert world.core.asked == []
    world.allow((operation, GROUP, "g"), (Operation.READ, TOPIC, "*"))
    answer = await world.ask(api_key, version, **fields)
    assert not {*errors_in(answer.to_dict())} & {GROUP_REFUSED, TOPIC_REFUSED}
    assert len(world.core.asked) == (api_key != FIND)
