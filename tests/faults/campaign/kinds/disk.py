"""A full disk, and files of the checkpoint that are cut or changed while the coordinator is down."""

import time
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from pathlib import Path
from random import Random

import click

from tests.campaigns.fault import Fault, FaultOutcome
from tests.campaigns.stage import START_TIMEOUT_S
from tests.e2e.harness import wait_until
from tests.faults.campaign.stage import FaultStage
from tests.harness.run_command import no_file_grows


def fill_disk(stage: FaultStage, random: Random) -> None:
    """No byte more gets into any file of the coordinator."""
    with no_file_grows(stage.driver(), stage.jvm()):
        time.sleep(random.uniform(1, 6))


def damage_checkpoint(stage: FaultStage, random: Random, *, is_cut: bool) -> FaultOutcome:
    """Kill the coordinator, and damage one of the newest files of its checkpoint.

    It goes on, or it names what is damaged. Then the file is put back, as it says.
    """
    ends = len(stage.coordinator.ends)
    with stage.coordinator.held_down():
        wait_for_jvm(stage)
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
        return FaultOutcome.WENT_ON
    click.echo(f"  refused: {said[:300]}", err=True)
    assert path.name in said or "ut back" in said, f"the damage of {path} is not named: {said}"
    path.write_bytes(before)
    return FaultOutcome.REFUSED


def _refusal(stage: FaultStage, ends: int) -> str:
    """Wait until the coordinator goes on, or refuses to. Return the reason, or "" if it goes on."""
    since_s = time.monotonic()
    refusals: list[str] = []

    def is_decided() -> bool:
        # The first end is that of the kill.
        refusals[:] = [end.said for end in stage.coordinator.ends[ends + 1 :] if end.exit_code != 0]
        status = stage.status()
        if status.phase == "failing":
            refusals.append(status.reason)
        return bool(refusals) or not stage.load.meter.wait_for_answers(stage.load.all_groups, since_s, 0)

    wait_until(is_decided, "answers, or a refusal", START_TIMEOUT_S)
    return refusals[-1] if refusals else ""


def newest_files(checkpoint: Path) -> list[Path]:
    """The newest file of each part of the checkpoint, and the coordinator's own files."""
    spark = checkpoint / "spark"
    parts = [spark / "offsets", spark / "commits", *spark.glob("state/*/*")]
    owners = sorted(checkpoint.glob("owners/*.json"), key=lambda path: int(path.stem))
    found = [checkpoint / "identity.json", *owners[-1:]]
    for part in parts:
        files = [path for path in part.glob("[0-9]*") if path.is_file()]
        found += sorted(files, key=lambda path: (int(path.stem.split("_")[0]), path.name))[-1:]
    return [path for path in found if path.exists() and path.stat().st_size > 0]


def wait_for_jvm(stage: FaultStage) -> None:
    """Wait for the end of the JVM, which may write for a moment after its coordinator."""
    lock = stage.checkpoint / "lock"

    def is_free() -> bool:
        with lock.open("rb+") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return False
            return True

    wait_until(is_free, "the end of the JVM", 60)


DISK = (
    Fault("disk full", 1.0, fill_disk),
    Fault("newest checkpoint file cut", 0.7, partial(damage_checkpoint, is_cut=True)),
    Fault("a bit of the newest checkpoint file changed", 0.7, partial(damage_checkpoint, is_cut=False)),
)
