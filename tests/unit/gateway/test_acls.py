"""What ACLs forbid at the gateway: each API of groups, at each version, and that it does not reach the
coordinator. `tests/conformance/scripts/acls.txt` compares the same with a real broker, field by field.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.authorization.acls import Acl, Operation, PatternType, Permission, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.wire import codec
from tests.harness.gateway import GatewayFixture, played, topic_id
from tests.harness.gateway_requests import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    commit_fields,
    join_fields,
    outcomes,
)

FIND = 10
ME = "User:ANONYMOUS"
TOPIC_REFUSED, GROUP_REFUSED = 29, 30
GROUP, TOPIC, CLUSTER = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.CLUSTER


def allowed(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, ME, "*", operation, Permission.ALLOW)


def authorizer(*acls: Acl) -> Callable[[], Authorizer]:
    def make() -> Authorizer:
        made = Authorizer()
        made.replace(acls)
        return made

    return make


def of_partitions(response: Any) -> set[int]:
    return {error for _, _, error in outcomes(response)}


def of_groups(response: Any) -> set[int]:
    entries = getattr(response, "results", None) or response.groups
    return {entry.error_code for entry in entries}


def whole(response: Any) -> set[int]:
    return {response.error_code}


def committed(version: int) -> dict[str, Any]:
    return commit_fields("", ("orders", 0, 7), ("prices", 0, 7), by_id=version >= 10)


def fetched(version: int) -> dict[str, Any]:
    key = {"topic_id": topic_id("orders")} if version >= 10 else {"name": "orders"}
    wanted = {"group_id": "g", "topics": [{**key, "partition_indexes": [0]}]}
    return {"groups": [wanted]} if version >= 8 else wanted


def found(version: int) -> dict[str, Any]:
    return {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}


def left(version: int) -> dict[str, Any]:
    return {"group_id": "g", **({"members": [{"member_id": "m"}]} if version >= 3 else {"member_id": "m"})}


def synced(version: int) -> dict[str, Any]:
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    return {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": [], **protocol}


def beaten(version: int) -> dict[str, Any]:
    return {"group_id": "g", "generation_id": 1, "member_id": "m"}


# The request of an API at a version, the operation on the group that it needs, and its errors.
APIS: dict[int, tuple[Callable[[int], dict[str, Any]], Operation, Callable[[Any], set[int]]]] = {
    COMMIT: (committed, Operation.READ, of_partitions),
    OFFSET_FETCH: (fetched, Operation.DESCRIBE, whole),
    FIND: (found, Operation.DESCRIBE, whole),
    JOIN: (lambda version: join_fields(), Operation.READ, whole),
    HEARTBEAT: (beaten, Operation.READ, whole),
    LEAVE: (left, Operation.READ, whole),
    SYNC: (synced, Operation.READ, whole),
    DESCRIBE: (lambda version: {"groups": ["g"]}, Operation.DESCRIBE, of_groups),
    DELETE_GROUPS: (lambda version: {"groups_names": ["g"]}, Operation.DELETE, of_groups),
    OFFSET_DELETE: (lambda version: {"group_id": "g", "topics": []}, Operation.DELETE, whole),
}


def errors_of(api_key: int, version: int, response: Any) -> set[int]:
    if api_key == OFFSET_FETCH and version >= 8:
        return of_groups(response)
    if api_key == OFFSET_FETCH and version == 1:
        return of_partitions(response)
    if api_key == FIND and version >= 4:
        return {one.error_code for one in response.coordinators}
    return APIS[api_key][2](response)


def cases() -> Iterator[Any]:
    for api_key in APIS:
        for version in codec.versions(api_key):
            yield pytest.param(api_key, version, id=f"{codec.REQUESTS[api_key].name}-{version}")


@pytest.mark.parametrize(("api_key", "version"), list(cases()))
def test_a_request_about_a_group_needs_its_operation(api_key: int, version: int) -> None:
    fields, operation, _ = APIS[api_key]
    others = [one for one in Operation if one not in (operation, Operation.ALL)]
    if operation is Operation.DESCRIBE:
        others = [Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS, Operation.CREATE]

    @played(authorizer=authorizer(*(allowed(one, GROUP, "g") for one in others)))
    async def denied(world: GatewayFixture) -> None:
        client = await world.client()
        answer = await client.ask(api_key, version, **fields(version))
        assert errors_of(api_key, version, answer) == {GROUP_REFUSED}
        assert world.core.asked == []

    acls = allowed(operation, GROUP, "g"), allowed(Operation.READ, TOPIC, "*")

    @played(authorizer=authorizer(*acls))
    async def granted(world: GatewayFixture) -> None:
        client = await world.client()
        await client.send(api_key, version, **fields(version))
        if api_key != FIND:
            await world.core.wait_for(lambda: len(world.core.asked) == 1)
        if api_key != JOIN:  # it may be parked
            _, answer = await client.receive()
            assert not errors_of(api_key, version, answer) & {GROUP_REFUSED, TOPIC_REFUSED}

    denied()
    granted()


@pytest.mark.parametrize("version", codec.versions(COMMIT))
def test_a_commit_needs_read_of_each_topic(version: int) -> None:
    @played(
        authorizer=authorizer(allowed(Operation.READ, GROUP, "g"), allowed(Operation.READ, TOPIC, "prices"))
    )
    async def play(world: GatewayFixture) -> None:
        client = await world.client()
        answer = await client.ask(COMMIT, version, **committed(version))
        orders, prices = (topic_id(n) if version >= 10 else n for n in ("orders", "prices"))
        assert outcomes(answer) == [(orders, 0, TOPIC_REFUSED), (prices, 0, 0)]

    play()


@played(authorizer=authorizer(allowed(Operation.READ, GROUP, "g")))
async def test_a_commit_of_no_topic_that_may_be_read_does_not_reach_the_coordinator(
    world: GatewayFixture,
) -> None:
    client = await world.client()
    answer = await client.ask(COMMIT, 9, **committed(9))
    assert of_partitions(answer) == {TOPIC_REFUSED}
    assert world.core.asked == []


@played(
    authorizer=authorizer(
        *(allowed(Operation.READ, GROUP, group) for group in ("g", "h")), allowed(Operation.READ, TOPIC, "*")
    )
)
async def test_groups_that_may_not_be_described_are_not_listed(world: GatewayFixture) -> None:
    client = await world.client()
    for group in ("g", "h"):
        fields = committed(9) | {"group_id": group}
        assert of_partitions(await client.ask(COMMIT, 9, **fields)) == {0}
    assert world.authorizer is not None
    world.authorizer.replace([allowed(Operation.DESCRIBE, GROUP, "h")])
    assert [group.group_id for group in (await client.ask(LIST, 5)).groups] == ["h"]
    world.authorizer.replace([allowed(Operation.DESCRIBE, CLUSTER, "kafka-cluster")])
    assert [group.group_id for group in (await client.ask(LIST, 5)).groups] == ["g", "h"]
    world.authorizer.replace([])
    answer = await client.ask(LIST, 5)
    assert (answer.error_code, answer.groups) == (0, [])


@played(authorizer=authorizer(allowed(Operation.READ, GROUP, "g")))
async def test_a_right_that_is_taken_away_ends_the_next_heartbeat(world: GatewayFixture) -> None:
    client = await world.client()
    assert (await client.ask(HEARTBEAT, 4, **beaten(4))).error_code != GROUP_REFUSED
    assert world.authorizer is not None
    world.authorizer.replace([])
    assert (await client.ask(HEARTBEAT, 4, **beaten(4))).error_code == GROUP_REFUSED


@played(authorizer=authorizer(allowed(Operation.DESCRIBE, GROUP, "g"), allowed(Operation.DELETE, GROUP, "g")))
async def test_the_operations_of_a_group_are_the_clients(world: GatewayFixture) -> None:
    client = await world.client()
    (group,) = (await client.ask(DESCRIBE, 5, groups=["g"], include_authorized_operations=True)).groups
    assert group.authorized_operations == {Operation.DESCRIBE, Operation.DELETE}
    (group,) = (await client.ask(DESCRIBE, 5, groups=["g"])).groups
    assert group.authorized_operations is None


@played
async def test_without_acls_everything_is_allowed(world: GatewayFixture) -> None:
    client = await world.client()
    assert of_partitions(await client.ask(COMMIT, 9, **committed(9))) == {0}
