"""The time from the start of the command, on the folder of a stopped coordinator, to its first response."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import TopicsClient, expect_no_error
from bench.report import Figure, say
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, RowResult
from bench.systems import PREFIX, RunningSystems, SystemProcesses

HEARTBEAT_INTERVAL_S = 3.0  # the default of heartbeat.interval.ms


def measure(bench: Bench) -> RowResult:
    """Stop and start the coordinator while a member sends heartbeats."""
    processes = bench.systems(DEFAULT_DELAY_MS)
    member = bench.call_in_process(_form, processes.running)
    ready_s: list[float] = []
    responses_s: list[float] = []
    for turn in range(min(bench.plan.repeats, 3)):
        say(f"    turn {turn + 1}")
        until_ready_s, until_response_s = restart_s(bench, processes, member)
        ready_s.append(until_ready_s)
        responses_s.append(until_response_s)
    return RowResult(
        [
            Figure("restart to the first committed batch", "s", ready_s),
            Figure("restart to the first response", "s", responses_s),
        ]
    )


def restart_s(bench: Bench, processes: SystemProcesses, member: Membership) -> tuple[float, float]:
    """Restart the coordinator while this member sends heartbeats. Return the seconds from the start of the
    command to the first committed batch, and to the first response.
    """
    with ThreadPoolExecutor(1) as thread:
        processes.stop_coordinator()
        first_response = thread.submit(bench.call_in_process, first_response_s, processes.running, member)
        began_s = time.time()
        processes.start_coordinator()
        ready_s = time.time() - began_s
        return ready_s, first_response.result() - began_s


def _form(systems: RunningSystems) -> Membership:
    with TopicsClient(systems.servers, PREFIX, packed=False) as client:
        return client.form_groups([f"restart-{uuid.uuid4()}"])[0]


def first_response_s(systems: RunningSystems, member: Membership) -> float:
    """Send heartbeats as a consumer does, and return when the first response came, in seconds since 1970."""
    with TopicsClient(systems.servers, PREFIX, packed=False) as client:
        (heartbeat,) = client.records([heartbeat_request(member)])
        while True:
            client.send(heartbeat, time.perf_counter())
            next_s = time.monotonic() + HEARTBEAT_INTERVAL_S
            while time.monotonic() < next_s:
                for _, _, answer in client.receive(0.05):
                    expect_no_error(answer)
                    return time.time()
