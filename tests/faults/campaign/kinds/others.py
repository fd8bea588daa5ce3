"""Another coordinator on the checkpoint, and a record that kills the worker."""

import os
import re
import shutil
import subprocess
from contextlib import closing
from functools import partial
from random import Random

from connections import kafka_clients
from records.codec import encode
from state.kafka.requests import Heartbeat
from tests.campaigns.fault import Fault, FaultOutcome
from tests.campaigns.planted import KILLER
from tests.campaigns.stage import ROOT, START_TIMEOUT_S, Status, environment
from tests.e2e.harness import wait_until
from tests.faults.campaign.stage import FaultStage

REFUSED = 78
"""The exit code of a coordinator whose topics belong to another one."""


def start_second(stage: FaultStage, _: Random, *, on_copy: bool) -> FaultOutcome:
    """Start another one on the checkpoint, or on a copy of it as on another machine. It is refused."""
    data = stage.data
    if on_copy:
        data = stage.folder / "copy"
        shutil.rmtree(data, ignore_errors=True)
        # Files that are written meanwhile may be missing: it is refused before it reads them.
        subprocess.run(["cp", "-r", str(stage.data), str(data)], check=False, capture_output=True)
        assert (data / "coordinator" / "identity.json").exists()
    second = subprocess.run(
        stage.command(data=data),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=os.environ | environment(),
        cwd=ROOT,
        check=False,
    )
    said = second.stderr.strip().splitlines()[-1]
    assert second.returncode == (REFUSED if on_copy else 1), (second.returncode, said)
    assert re.search(rf"process (id )?{stage.driver()}\b", said), said
    return FaultOutcome.REFUSED


def kill_workers_by_record(stage: FaultStage, random: Random) -> FaultOutcome:
    """A request kills each worker that handles it. The coordinator names it, and can skip it."""
    record = _send_deadly(stage, f"deadly-{random.getrandbits(32)}")
    status: list[Status] = []

    def is_failing() -> bool:
        status[:] = [stage.status()]
        return status[0].phase == "failing"

    wait_until(is_failing, "a failing batch", START_TIMEOUT_S)
    reason = status[0].reason
    named = re.search(r"--skip-record (\S+)", reason)
    assert named is not None, f"no record is named: {reason}"
    assert named[1] == record, (named[1], record)
    stage.skip(record)
    with stage.coordinator.held_down():
        pass
    return FaultOutcome.REFUSED


def _send_deadly(stage: FaultStage, group_id: str) -> str:
    """Append the request. Return its id."""
    request = Heartbeat(
        group_id=group_id,
        correlation_id=group_id,
        reply_partition=0,
        api_version=4,
        client_id=KILLER,
        generation_id=1,
        member_id="m",
    )
    topic = stage.layout.requests_topic
    with closing(kafka_clients.producer(stage.client_config)) as producer:
        sent = producer.send(topic, key=group_id.encode(), value=encode(request), partition=0).get(60)
    return f"{topic}-0-{sent.offset}"


OTHERS = (
    Fault("second coordinator on the checkpoint", 0.7, partial(start_second, on_copy=False)),
    Fault("second coordinator on a copy", 0.7, partial(start_second, on_copy=True)),
    Fault("a record that kills the worker", 0.5, kill_workers_by_record),
)
