"""A client over its quota: `throttle_time_ms` in the answer, and a muted connection (KIP-219)."""

import time
from typing import Any

import pytest

from gateway.limits import DEFAULT, QuotaRules
from tests.harness.gateway import GatewayFixture, played
from tests.harness.gateway_requests import COMMIT, DESCRIBE, HEARTBEAT, JOIN, LIST, commit_fields, join_fields
from tests.unit.gateway.test_pipelining import beat, nothing_more
from tests.unit.gateway.test_security import USERS, log_in

# A burst of one request in a window of 10 s. The next one is throttled for up to that window.
SLOW = QuotaRules({(None, "me"): 0.1})
ONE_WINDOW: dict[str, Any] = {"quota_window_num": 1, "quota_window_s": 10.0}
# As SLOW, but the window is over soon.
QUICK = QuotaRules({(None, "me"): 10.0})
SHORT_WINDOW: dict[str, Any] = {"quota_window_num": 1, "quota_window_s": 0.1}


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


@played(rules=QUICK, **SHORT_WINDOW)
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
    world.quotas.use(SLOW)
    answers = [await world.ask(HEARTBEAT, 4, **beat()) for _ in range(2)]
    assert [answer.throttle_time_ms > 0 for answer in answers] == [False, True]
