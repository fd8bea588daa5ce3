"""From the start of the command, on the folder of a coordinator that was stopped, to its first response."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import TopicsClient, expect_no_error
from bench.report import Figure, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found
from bench.systems import PREFIX, Running, RunningSystems

HEARTBEAT_INTERVAL_S = 3.0  # the default of heartbeat.interval.ms


def measure(bench: Bench) -> Found:
    """Restart the coordinator in order, while a member sends heartbeats."""
    running = bench.systems(KAFKAS_DELAY_MS)
    member = bench.load(_form, running.world)
    ready_s: list[float] = []
    answered_s: list[float] = []
    for turn in range(min(bench.plan.repeats, 3)):
        say(f"    turn {turn + 1}")
        for seconds, took_s in zip((ready_s, answered_s), restart_s(bench, running, member), strict=True):
            seconds.append(took_s)
    return Found(
        [
            Figure("restart to the first committed batch", "s", ready_s),
            Figure("restart to the first response", "s", answered_s),
        ]
    )


def restart_s(bench: Bench, running: Running, member: Membership) -> tuple[float, float]:
    """Restart the coordinator while this member sends heartbeats. Return the seconds from the start of the
    command to the first committed batch, and to the first response.
    """
    with ThreadPoolExecutor(1) as waiting:
        running.stop_coordinator()
        answered = waiting.submit(bench.load, first_response_s, running.world, member)
        began_s = time.time()
        running.start_coordinator()
        ready_s = time.time() - began_s
        return ready_s, answered.result() - began_s


def _form(world: RunningSystems) -> Membership:
    with TopicsClient(world.servers, PREFIX, packed=False) as client:
        return client.form([f"restart-{uuid.uuid4()}"])[0]


def first_response_s(world: RunningSystems, member: Membership) -> float:
    """Send heartbeats as a consumer does, and return when the first response came, in seconds since 1970."""
    with TopicsClient(world.servers, PREFIX, packed=False) as client:
        (heartbeat,) = client.records([heartbeat_request(member)])
        while True:
            client.send(heartbeat, time.perf_counter())
            next_s = time.monotonic() + HEARTBEAT_INTERVAL_S
            while time.monotonic() < next_s:
                for _, _, answer in client.receive(0.05):
                    expect_no_error(answer)
                    return time.time()
