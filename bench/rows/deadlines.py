"""The lateness of deadlines: from the end of the initial delay of new groups to the JoinGroup's response."""

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from bench.load.load_result import WrongAnswer
from bench.load.requests import join_request
from bench.load.topics import TopicsClient, expect_no_error
from bench.report import Figure, at_most
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found, Plan
from bench.stats import percentile
from bench.systems import ON_TOPICS, PREFIX, RunningSystems

GAP_MAX_S = 0.2
_LOST_AFTER_S = 60.0


def measure(bench: Bench) -> Found:
    """Let deadlines pass at random moments."""
    world = bench.systems(KAFKAS_DELAY_MS).world
    turns = bench.load(lateness_s, world, bench.plan)
    every = [late for turn in turns for late in turn]
    what, p50 = "deadline due to response", [percentile(turn, 0.5) for turn in turns]
    return Found(
        [
            Figure(f"{what}, p50", "s", p50, (), "", at_most(0.2), at_most(0.1)),
            Figure(f"{what}, p99", "s", [percentile(every, 0.99)], (), "", at_most(0.5), at_most(0.3)),
        ]
    )


def lateness_s(world: RunningSystems, plan: Plan) -> list[list[float]]:
    """Return by turn, for each new group, the seconds from the end of the delay to its response."""
    with TopicsClient(world.servers, PREFIX, packed=False) as client, world.alone(ON_TOPICS):
        late_turn(client, plan.singles // 2)  # warm-up
        return [late_turn(client, plan.singles * 2) for _ in range(plan.repeats)]


def late_turn(client: TopicsClient, groups: int, delay_ms: int = KAFKAS_DELAY_MS) -> list[float]:
    """Return for this many new groups the seconds from the initial delay to the response."""
    waits = random.Random(11)
    joins = [
        # A rebalance timeout no longer than the delay, so that the delay is not extended.
        join_request(f"late-{uuid.uuid4()}", rebalance_timeout_ms=delay_ms)
        for _ in range(groups)
    ]
    due_s: dict[int, float] = {}
    here_s: dict[int, float] = {}

    def note_due(place: int) -> Callable[[Any], None]:
        def appended(message: Any) -> None:
            due_s[place] = (message.timestamp()[1] + delay_ms) / 1e3

        return appended

    give_up_s = time.monotonic() + _LOST_AFTER_S + groups * GAP_MAX_S
    records, next_s = client.records(joins), 0.0
    sent = 0
    while len(here_s) < groups:
        if sent < groups and time.monotonic() >= next_s:
            client.send(records[sent], 0.0, note_due(sent))
            sent, next_s = sent + 1, time.monotonic() + waits.uniform(0, GAP_MAX_S)
        for place, _, answer in client.receive(0.005):
            expect_no_error(answer)
            here_s[place] = time.time()
        if time.monotonic() > give_up_s:
            raise WrongAnswer(f"{groups - len(here_s)} responses are missing")
    return [here_s[place] - due_s[place] for place in range(groups)]
