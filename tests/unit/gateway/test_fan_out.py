"""A request about many groups costs what as many requests would. A client over its quota waits (KIP-219)."""

import asyncio
import threading
import time
from typing import Any

import pytest

from gateway.apis.batch import AT_ONCE
from gateway.limits import DEFAULT, QuotaRules
from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from kafka_why.contract.kafka.requests import Heartbeat
from tests.harness.gateway import (
    COMMIT,
    DELETE_GROUPS,
    DESCRIBE,
    HEARTBEAT,
    JOIN,
    LIST,
    OFFSET_FETCH,
    GatewayFixture,
    commit_fields,
    join_fields,
    played,
    stable,
)
from tests.harness.waiting import until
from tests.unit.gateway.test_security import USERS, log_in
from tests.unit.gateway.test_server import beat, hold, nothing_more, until_asked

FIND_COORDINATOR, DESCRIBE_CONFIGS, ALTER_CONFIGS, CONSUMER_GROUP_DESCRIBE = 10, 32, 33, 69
INVALID_REQUEST = 42
GROUP = 32  # ConfigResource.Type
# Ten a second. A request of another client id has no quota.
TEN_A_SECOND = QuotaRules({(None, "me"): 10.0})
NO_BURST: dict[str, Any] = {"quota_window_num": 1, "quota_window_s": 0.1}


def about(number: int) -> list[tuple[int, int, dict[str, Any], str]]:
    """Each kind of request about several groups, and the field of its answer that has their errors."""
    ids = [f"g-{n}" for n in range(number)]
    resources = [{"resource_type": GROUP, "resource_name": name} for name in ids]
    return [
        (DESCRIBE, 5, {"groups": ids}, "groups"),
        (CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": ids}, "groups"),
        (DELETE_GROUPS, 2, {"groups_names": ids}, "results"),
        (OFFSET_FETCH, 9, {"groups": [{"group_id": name, "topics": None} for name in ids]}, "groups"),
        (DESCRIBE_CONFIGS, 4, {"resources": resources}, "results"),
        (ALTER_CONFIGS, 2, {"resources": [{**r, "configs": []} for r in resources]}, "responses"),
    ]


def in_flight(world: GatewayFixture) -> float:
    (number,) = world.gateway.numbers()["in_flight"]["coordinator",]
    return number


@pytest.mark.parametrize("kind", range(len(about(0))))
@played(at_coordinator=10)
async def test_each_group_of_a_request_takes_coordinator_capacity(world: GatewayFixture, kind: int) -> None:
    attacker, other = await world.client(), await world.client()
    events = [hold(world, f"g-{n}") for n in range(100)]
    api_key, version, fields, _ = about(100)[kind]
    await attacker.send(api_key, version, **fields)
    await until_asked(world, 10)
    await nothing_more(world, 10)
    assert in_flight(world) >= 10
    beating = await other.send(HEARTBEAT, 4, **beat("alive"))
    await until(lambda: world.gateway.numbers()["held_clients"]["room",] == [1])
    events[1].set()  # the first place that is free is the other client's
    assert (await other.receive())[0] == beating
    assert len(world.core.asked) <= 12
    for event in events:
        event.set()
    await attacker.receive_bytes()
    assert in_flight(world) == 0


@played
async def test_groups_of_one_request_in_flight_at_the_coordinator_are_limited(world: GatewayFixture) -> None:
    client = await world.client()
    events = [hold(world, f"g-{n}") for n in range(3 * AT_ONCE)]
    for api_key, version, fields, _ in about(len(events)):
        world.core.asked.clear()
        await client.send(api_key, version, **fields)
        await until_asked(world, AT_ONCE + 1)
        await nothing_more(world, AT_ONCE + 1)
        for event in events:
            event.set()
        await client.receive_bytes()
        assert len(world.core.asked) == len(events)
        for event in events:
            event.clear()


@played(groups_per_request=3)
async def test_groups_over_the_request_limit_are_refused_without_a_query(world: GatewayFixture) -> None:
    for api_key, version, fields, answers in about(7):
        world.core.asked.clear()
        answer = await world.ask(api_key, version, **fields)
        errors = [one.error_code for one in getattr(answer, answers)]
        assert errors[3:] == [INVALID_REQUEST] * 4
        assert INVALID_REQUEST not in errors[:3]
        assert [request.group_id for request in world.core.asked] == ["g-0", "g-1", "g-2"]


@played(groups_per_request=3)
async def test_find_coordinator_refuses_keys_over_the_request_limit(world: GatewayFixture) -> None:
    keys = [f"g-{n}" for n in range(7)]
    found = (await world.ask(FIND_COORDINATOR, 4, coordinator_keys=keys, key_type=0)).coordinators
    assert [(one.key, one.error_code) for one in found] == [
        *((key, 0) for key in keys[:3]),
        *((key, INVALID_REQUEST) for key in keys[3:]),
    ]


@pytest.mark.parametrize("kind", range(len(about(0))))
@played(rules=TEN_A_SECOND, **NO_BURST)
async def test_each_group_of_a_request_counts_for_the_quota(world: GatewayFixture, kind: int) -> None:
    api_key, version, fields, _ = about(6)[kind]
    began_s = time.monotonic()
    await world.ask(api_key, version, **fields)
    assert time.monotonic() - began_s >= 0.45, "five of them wait 0.1 s each"


@played(rights=[])
async def test_refusing_many_groups_does_not_block_other_connections(world: GatewayFixture) -> None:
    """Nothing is asked of the coordinator, so nothing else makes the request wait."""
    attacker, other = await world.client(), await world.client()
    await other.ask(FIND_COORDINATOR, 4, coordinator_keys=["g"], key_type=0)
    await attacker.send(DESCRIBE, 5, groups=["g"] * 10_000)
    answered = asyncio.create_task(attacker.receive_bytes())
    beats = 0
    while not answered.done():
        await other.ask(HEARTBEAT, 4, **beat("alive"))
        beats += 1
    assert beats >= 5
    assert not any(isinstance(request, Heartbeat) for request in world.core.asked)


@played(groups_per_request=10)
async def test_long_response_is_encoded_off_the_event_loop(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding takes some 10 us for each group."""
    threads: set[str] = set()
    encode = codec.encode_response

    def watched(header: RequestHeader, response: Any) -> bytes:
        threads.add(threading.current_thread().name)
        return encode(header, response)

    monkeypatch.setattr(codec, "encode_response", watched)
    answer = await world.ask(DESCRIBE, 5, groups=[f"g-{n}" for n in range(5_000)])
    assert len(answer.groups) == 5_000
    assert threads
    assert threading.main_thread().name not in threads


@played(groups_answer_bytes=100_000)
async def test_response_about_one_repeated_group_is_bounded(world: GatewayFixture) -> None:
    client = await world.client()
    await stable(world, client, protocols=[{"name": "range", "metadata": b"m" * 10_000}])
    before = len(world.core.asked)
    answer = await client.ask(DESCRIBE, 5, groups=["g"] * 1_000)
    errors = [group.error_code for group in answer.groups]
    whole = errors.count(0)
    assert 10 <= whole <= 11 + AT_ONCE
    assert errors == [0] * whole + [INVALID_REQUEST] * (1_000 - whole)
    assert len(world.core.asked) - before == whole


# A burst of one request in a window of 10 s. The next one is throttled for up to that window.
SLOW = QuotaRules({(None, "me"): 0.1})
ONE_WINDOW: dict[str, Any] = {"quota_window_num": 1, "quota_window_s": 10.0}


def asked(world: GatewayFixture) -> int:
    return len(world.core.asked)


@pytest.mark.parametrize("rules", [SLOW, QuotaRules({("ANONYMOUS", None): 0.1})], ids=["client", "user"])
@played(rules=lambda rules: rules, **ONE_WINDOW)
async def test_response_over_quota_has_the_throttle_time(world: GatewayFixture, rules: QuotaRules) -> None:
    began_s = time.monotonic()
    assert (await world.ask(HEARTBEAT, 4, **beat())).throttle_time_ms == 0
    over = await world.ask(HEARTBEAT, 4, **beat())
    took_ms = (time.monotonic() - began_s) * 1000
    assert over.error_code == 25, "the request is handled all the same"
    assert 9_900 - took_ms < over.throttle_time_ms <= 10_000


@played(rules=SLOW, **ONE_WINDOW)
async def test_only_the_throttled_connection_is_muted(world: GatewayFixture) -> None:
    client, other = await world.client(), await world.client(client_id="another")
    for _ in range(2):
        await client.ask(HEARTBEAT, 4, **beat())
    await client.send(HEARTBEAT, 4, **beat())
    for _ in range(5):
        assert (await other.ask(HEARTBEAT, 4, **beat())).throttle_time_ms == 0
    assert asked(world) == 7
    await nothing_more(world, 7)
    assert world.gateway.numbers()["held_clients"]["quota",] == [1]


@played(rules=TEN_A_SECOND, **NO_BURST)
async def test_muted_connection_is_served_again_after_the_throttle_time(world: GatewayFixture) -> None:
    began_s = time.monotonic()
    answers = [await world.ask(HEARTBEAT, 4, **beat()) for _ in range(5)]
    took_ms = (time.monotonic() - began_s) * 1000
    throttled_ms = sum(answer.throttle_time_ms for answer in answers[:-1])
    assert throttled_ms > 0
    assert took_ms >= throttled_ms - 10
    assert {answer.error_code for answer in answers} == {25}


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (COMMIT, commit_fields("", ("orders", 0, 1))),
        (DESCRIBE, {"groups": ["g"]}),
        (LIST, {}),
        (JOIN, join_fields()),
    ],
)
@played(rules=SLOW, **ONE_WINDOW)
async def test_each_kind_of_request_is_throttled(
    world: GatewayFixture, api_key: int, body: dict[str, Any]
) -> None:
    await world.ask(HEARTBEAT, 4, **beat())
    assert (await world.ask(api_key, 5, **body)).throttle_time_ms > 0


@played(rules=QuotaRules({("ann", None): 0.1, (DEFAULT, None): 1000.0}), security=USERS, **ONE_WINDOW)
async def test_connections_of_a_user_share_its_quota_across_client_ids(world: GatewayFixture) -> None:
    throttled = []
    for user, client_id in (("ann\0secret", "a"), ("ann\0secret", "b"), ("bob\0zażółć", "a")):
        client = await world.client(client_id=client_id)
        assert await log_in(client, f"\0{user}".encode()) == 0
        throttled.append((await client.ask(HEARTBEAT, 4, **beat())).throttle_time_ms > 0)
    assert throttled == [False, True, False]


@played(**ONE_WINDOW)
async def test_new_quota_rules_apply_to_open_connections(world: GatewayFixture) -> None:
    for _ in range(5):
        assert (await world.ask(HEARTBEAT, 4, **beat())).throttle_time_ms == 0
    world.quotas.replace_rules(SLOW)
    answers = [await world.ask(HEARTBEAT, 4, **beat()) for _ in range(2)]
    assert [answer.throttle_time_ms > 0 for answer in answers] == [False, True]
