"""A full disk, and files of the checkpoint that are cut or changed while the coordinator is down."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from tests.e2e.harness import wait_until
from tests.faults.campaign.cluster import START_TIMEOUT_S, CampaignCluster
from tests.faults.campaign.kinds.fault import FaultOutcome, PlainFault
from tests.harness.run_command import no_file_grows


def fill_disk(world: CampaignCluster, random: Random) -> None:
    """No byte more gets into any file of the coordinator."""
    with no_file_grows(world.driver(), world.jvm()):
        time.sleep(random.uniform(1, 6))


@dataclass(frozen=True)
class CheckpointDamaged:
    """The coordinator is killed, and one of the newest files of its checkpoint is damaged.

    It goes on, or it names what is damaged. Then the file is put back, as it says.
    """

    name: str
    is_cut: bool
    weight: float = 0.7

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        log = world.folder / f"damaged-{world.coordinator.starts}"
        ends = len(world.coordinator.ends)
        with world.coordinator.held_down():
            wait_for_jvm(world)
            path = random.choice(newest_files(world.checkpoint))
            copy = log.with_suffix(".copy")
            shutil.copyfile(path, copy)
            content = bytearray(path.read_bytes())
            place = random.randrange(len(content))
            if self.is_cut:
                path.write_bytes(content[:place])
            else:
                content[place] ^= 1 << random.randrange(8)
                path.write_bytes(content)
            click.echo(f"  {path.relative_to(world.checkpoint)}, byte {place} of {len(content)}", err=True)
        return self._see(world, path, copy, ends)

    def _see(self, world: CampaignCluster, path: Path, copy: Path, ends: int) -> FaultOutcome:
        """Wait until it goes on or refuses, and do what it says."""
        since_s = time.monotonic()
        refusals: list[str] = []

        def is_decided() -> bool:
            # The first end is that of the kill.
            refusals[:] = [end.said for end in world.coordinator.ends[ends + 1 :] if end.exit_code != 0]
            status = world.status()
            if status.phase == "failing":
                refusals.append(status.reason)
            return bool(refusals) or not world.load.meter.wait_for_answers(world.load.all_groups, since_s, 0)

        wait_until(is_decided, "answers, or a refusal", START_TIMEOUT_S)
        if not refusals:
            return FaultOutcome.WENT_ON
        click.echo(f"  refused: {refusals[-1][:300]}", err=True)
        is_named = path.name in refusals[-1] or "ut back" in refusals[-1]
        assert is_named, f"the damage of {path} is not named: {refusals[-1]}"
        shutil.copyfile(copy, path)
        return FaultOutcome.REFUSED


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


def wait_for_jvm(world: CampaignCluster) -> None:
    """Wait for the end of the JVM, which may write for a moment after its coordinator."""
    lock = world.checkpoint / "lock"

    def is_free() -> bool:
        import fcntl

        with lock.open("rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    wait_until(is_free, "the end of the JVM", 60)


DISK = (
    PlainFault("disk full", 1.0, fill_disk),
    CheckpointDamaged("newest checkpoint file cut", is_cut=True),
    CheckpointDamaged("a bit of the newest checkpoint file changed", is_cut=False),
)
