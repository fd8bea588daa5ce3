"""A full disk, files of the checkpoint that are cut or changed while the coordinator is down, and a record
that kills the worker.
"""

import re
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import click

from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.service import ServicePhase
from tests.campaigns.fault import Fault
from tests.campaigns.planted import KILLER
from tests.campaigns.stage import START_TIMEOUT_S
from tests.e2e.harness import running, wait_until
from tests.faults.campaign.stage import FaultStage
from tests.harness.run_command import no_file_grows


def fill_disk(stage: FaultStage, random: Random) -> None:
    """Prevent files of the coordinator from growing, as on a full disk."""
    with no_file_grows(stage.driver_pid(), stage.jvm_pid()):
        time.sleep(random.uniform(1, 6))


def damage_checkpoint(stage: FaultStage, random: Random, *, is_cut: bool) -> bool:
    """Kill the coordinator, and damage one of the newest files of its checkpoint.

    The coordinator continues, or names the damaged file. Then the file is restored, as the message demands.
    """
    ends, jvm = len(stage.coordinator.ends), stage.jvm_pid()
    with stage.coordinator.held_down():
        # It may write for a moment after its coordinator.
        wait_until(lambda: not running([jvm]), "the end of the JVM", 60)
        path = random.choice(newest_files(stage.checkpoint))
        before = path.read_bytes()
        content = bytearray(before)
        place = random.randrange(len(content))
        if is_cut:
            path.write_bytes(content[:place])
        else:
            content[place] ^= 1 << random.randrange(8)
            path.write_bytes(content)
        click.echo(f"  {path.relative_to(stage.checkpoint)}, byte {place} of {len(content)}", err=True)
    said = _refusal(stage, ends)
    if not said:
        return False
    click.echo(f"  refused: {said[:300]}", err=True)
    assert path.name in said or "ut back" in said, f"the damage of {path} is not named: {said}"
    path.write_bytes(before)
    return True


def _refusal(stage: FaultStage, ends: int) -> str:
    """Wait until the coordinator continues or refuses to. Return the reason, or "" if it continues."""
    since_s = time.monotonic()
    refusals: list[str] = []

    def is_decided() -> bool:
        # The first end is that of the kill.
        refusals[:] = [end.said for end in stage.coordinator.ends[ends + 1 :] if end.exit_code != 0]
        refusals.extend(filter(None, [_failure(stage)]))
        return bool(refusals) or not stage.load.meter.wait_for_answers(stage.load.groups, since_s, 0)

    wait_until(is_decided, "answers, or a refusal", START_TIMEOUT_S)
    return refusals[-1] if refusals else ""


def newest_files(checkpoint: Path) -> list[Path]:
    """Return the newest file of each part of the checkpoint, and the coordinator's own files."""
    spark = checkpoint / "spark"
    parts = [spark / "offsets", spark / "commits", *spark.glob("state/*/*")]
    owners = sorted(checkpoint.glob("owners/*.json"), key=lambda path: int(path.stem))
    found = [checkpoint / "identity.json", *owners[-1:]]
    for part in parts:
        files = [path for path in part.glob("[0-9]*") if path.is_file()]
        found += sorted(files, key=lambda path: (int(path.stem.split("_")[0]), path.name))[-1:]
    return [path for path in found if path.exists() and path.stat().st_size > 0]


def _failure(stage: FaultStage) -> str:
    """Return the reason of a batch that fails repeatedly, or "" if there is none."""
    status = stage.status()
    return "" if status is None or status.phase is not ServicePhase.FAILING else status.reason


def kill_workers_by_record(stage: FaultStage, random: Random) -> bool:
    """Append a request that kills each worker that handles it. The coordinator names it, and can skip it."""
    record = _send_deadly(stage, f"deadly-{random.getrandbits(32)}")
    wait_until(lambda: bool(_failure(stage)), "a failing batch", START_TIMEOUT_S)
    reason = _failure(stage)
    named = re.search(r"--skip-record (\S+)", reason)
    assert named is not None, f"no record is named: {reason}"
    assert named[1] == record, (named[1], record)
    stage.skip(record)
    with stage.coordinator.held_down():
        pass
    return True


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


DAMAGE = (
    Fault("disk full", 1.0, fill_disk),
    Fault("newest checkpoint file cut", 0.7, partial(damage_checkpoint, is_cut=True)),
    Fault("a bit of the newest checkpoint file changed", 0.7, partial(damage_checkpoint, is_cut=False)),
    Fault("a record that kills the worker", 0.5, kill_workers_by_record),
)
