"""From the start of the command, on the folder of a coordinator that was stopped, to its first response."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import TopicsClient
from bench.report import Figure, say
from bench.rows.bench import KAFKAS_DELAY_MS, Bench, Found
from bench.systems import PREFIX, World


def measure(bench: Bench) -> Found:
    """Restart the coordinator in order, with a heartbeat waiting for it on the topic."""
    running = bench.systems(KAFKAS_DELAY_MS)
    member = bench.load(_form, running.world)
    ready_s, answered_s = [], []
    for turn in range(min(bench.plan.repeats, 3)):
        say(f"    turn {turn + 1}")
        with ThreadPoolExecutor(1) as waiting:
            running.stop_coordinator()
            answered = waiting.submit(bench.load, first_response_s, running.world, member)
            began_s = time.time()
            running.start_coordinator()
            ready_s.append(time.time() - began_s)
            answered_s.append(answered.result() - began_s)
    return Found(
        [
            Figure("restart to the first committed batch", "s", ready_s),
            Figure("restart to the first response", "s", answered_s),
        ]
    )


def _form(world: World) -> Membership:
    with TopicsClient(world.servers, PREFIX, packed=False) as client:
        return client.form([f"restart-{uuid.uuid4()}"])[0]


def first_response_s(world: World, member: Membership) -> float:
    """Send a heartbeat, and return when its response came, in seconds since 1970."""
    with TopicsClient(world.servers, PREFIX, packed=False) as client:
        client.one(*client.records([heartbeat_request(member)]))
        return time.time()
