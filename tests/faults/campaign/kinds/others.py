"""Another coordinator on the checkpoint, and a record that kills the worker."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from random import Random

from connections import kafka_clients
from records.codec import encode
from state.kafka.requests import Heartbeat
from tests.e2e.harness import wait_until
from tests.faults.campaign.cluster import ROOT, START_TIMEOUT_S, CampaignCluster, Status, environment
from tests.faults.campaign.kinds.fault import FaultOutcome
from tests.faults.campaign.planted import KILLER

REFUSED = 78
"""The exit code of a coordinator whose topics belong to another one."""


@dataclass(frozen=True)
class SecondCoordinator:
    """Another one starts on the checkpoint, or on a copy of it as on another machine. It is refused."""

    name: str
    on_copy: bool
    weight: float = 0.7

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        data = world.data
        if self.on_copy:
            data = world.folder / "copy"
            shutil.rmtree(data, ignore_errors=True)
            # Files that are written meanwhile may be missing: it is refused before it reads them.
            subprocess.run(["cp", "-r", str(world.data), str(data)], check=False, capture_output=True)
            assert (data / "coordinator" / "identity.json").exists()
        second = subprocess.run(
            world.command(data=data),
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            env=os.environ | environment(),
            cwd=ROOT,
            check=False,
        )
        said = second.stderr.strip().splitlines()[-1]
        assert second.returncode == (REFUSED if self.on_copy else 1), (second.returncode, said)
        assert re.search(rf"process (id )?{world.driver()}\b", said), said
        return FaultOutcome.REFUSED


@dataclass(frozen=True)
class DeadlyRecord:
    """A request that kills each worker which handles it. The coordinator names it, and can skip it."""

    name: str = "a record that kills the worker"
    weight: float = 0.5

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        record = self._send(world, f"deadly-{random.getrandbits(32)}")
        status: list[Status] = []

        def is_failing() -> bool:
            status[:] = [world.status()]
            return status[0].phase == "failing"

        wait_until(is_failing, "a failing batch", START_TIMEOUT_S)
        reason = status[0].reason
        named = re.search(r"--skip-record (\S+)", reason)
        assert named is not None, f"no record is named: {reason}"
        assert named[1] == record, (named[1], record)
        world.skip(record)
        with world.coordinator.held_down():
            pass
        return FaultOutcome.REFUSED

    def _send(self, world: CampaignCluster, group_id: str) -> str:
        """Append the request. Returns its id."""
        request = Heartbeat(
            group_id=group_id,
            correlation_id=group_id,
            reply_partition=0,
            api_version=4,
            client_id=KILLER,
            generation_id=1,
            member_id="m",
        )
        topic = world.layout.requests_topic
        producer = kafka_clients.producer(world.client_config)
        try:
            sent = producer.send(topic, key=group_id.encode(), value=encode(request), partition=0).get(60)
        finally:
            producer.close()
        return f"{topic}-0-{sent.offset}"


OTHERS = (
    SecondCoordinator("second coordinator on the checkpoint", on_copy=False),
    SecondCoordinator("second coordinator on a copy", on_copy=True),
    DeadlyRecord(),
)
