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
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, Plan, RowResult
from bench.stats import percentile
from bench.systems import ON_TOPICS, PREFIX, RunningSystems

GAP_MAX_S = 0.2
_LOST_AFTER_S = 60.0


def measure(bench: Bench) -> RowResult:
    """Measure how late deadlines at random moments are."""
    systems = bench.systems(DEFAULT_DELAY_MS).running
    turns = bench.call_in_process(lateness_turns_s, systems, bench.plan)
    all_late_s = [late_s for turn in turns for late_s in turn]
    what, p50 = "deadline due to response", [percentile(turn, 0.5) for turn in turns]
    return RowResult(
        [
            Figure(f"{what}, p50", "s", p50, required=at_most(0.2), target=at_most(0.1)),
            Figure(
                f"{what}, p99",
                "s",
                [percentile(all_late_s, 0.99)],
                required=at_most(0.5),
                target=at_most(0.3),
            ),
        ]
    )


def lateness_turns_s(systems: RunningSystems, plan: Plan) -> list[list[float]]:
    """Return by turn, for each new group, the seconds from the end of the delay to its response."""
    with TopicsClient(systems.servers, PREFIX, packed=False) as client, systems.run_only(ON_TOPICS):
        measure_lateness_s(client, plan.single_requests // 2)  # warm-up
        return [measure_lateness_s(client, plan.single_requests * 2) for _ in range(plan.repeats)]


def measure_lateness_s(client: TopicsClient, groups: int, delay_ms: int = DEFAULT_DELAY_MS) -> list[float]:
    """Form this many groups. Return for each the seconds from the end of the initial delay to the answer."""
    waits = random.Random(11)
    joins = [
        # A rebalance timeout no longer than the delay, so that the delay is not extended.
        join_request(f"late-{uuid.uuid4()}", rebalance_timeout_ms=delay_ms)
        for _ in range(groups)
    ]
    due_s: dict[int, float] = {}
    answered_s: dict[int, float] = {}

    def recorder_of_due_time(index: int) -> Callable[[Any], None]:
        def on_append(message: Any) -> None:
            # The delay begins at the log's time of the JoinGroup.
            due_s[index] = (message.timestamp()[1] + delay_ms) / 1e3

        return on_append

    deadline_s = time.monotonic() + _LOST_AFTER_S + groups * GAP_MAX_S
    records, next_s = client.records(joins), 0.0
    sent = 0
    while len(answered_s) < groups:
        if sent < groups and time.monotonic() >= next_s:
            client.send(records[sent], 0.0, recorder_of_due_time(sent))
            sent, next_s = sent + 1, time.monotonic() + waits.uniform(0, GAP_MAX_S)
        for index, _, answer in client.receive(0.005):
            expect_no_error(answer)
            answered_s[index] = time.time()
        if time.monotonic() > deadline_s:
            raise WrongAnswer(f"{groups - len(answered_s)} responses are missing")
    return [answered_s[index] - due_s[index] for index in range(groups)]
