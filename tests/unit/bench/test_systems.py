"""Systems stand still while another is measured, and their checkpoint is read as Spark writes it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.systems import COORDINATOR, GATEWAY, RunningSystems, cores_of
from cli.processes.family import family

BUSY = "while True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def world(folder: Path, pids: dict[str, int]) -> RunningSystems:
    return RunningSystems("127.0.0.1:1", "127.0.0.1:2", folder, os.getpid(), packed=True, pids=pids)


def test_all_but_the_measured_systems_stand_still(tmp_path: Path) -> None:
    """With their descendants."""
    with (
        subprocess.Popen([sys.executable, "-c", PARENT]) as coordinator,
        subprocess.Popen([sys.executable, "-c", BUSY]) as gateway,
    ):
        try:
            systems = world(tmp_path, {COORDINATOR: coordinator.pid, GATEWAY: gateway.pid})
            while cores_of(coordinator.pid, 0.2) < 0.1:  # until its child is busy
                pass
            with systems.alone((GATEWAY,)):
                assert cores_of(coordinator.pid, 0.3) == 0
                assert cores_of(gateway.pid, 0.3) > 0
            assert cores_of(coordinator.pid, 0.5) > 0
            assert systems.memory_bytes(COORDINATOR) > systems.memory_bytes(GATEWAY) > 1_000_000
        finally:
            for pid in (*family(coordinator.pid), gateway.pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def checkpoint(tmp_path: Path) -> RunningSystems:
    spark = tmp_path / "coordinator" / "spark"
    state = spark / "state" / "0" / "0"
    for folder in (spark / "commits", spark / "offsets", state):
        folder.mkdir(parents=True)
    for batch in range(4):
        for name, at_s in (("offsets", 100 + batch), ("commits", 100.25 + batch)):
            path = spark / name / str(batch)
            path.touch()
            os.utime(path, (at_s, at_s))
        (state / f"{batch + 1}.changelog").write_bytes(b"x" * 10**batch)
        (state / f".{batch + 1}.changelog.crc").write_bytes(b"crc")
    (state / "3.zip").write_bytes(b"x" * 7)
    return world(tmp_path, {})


def test_the_bytes_that_batches_wrote_are_of_the_versions_after_them(checkpoint: RunningSystems) -> None:
    assert checkpoint.last_batch() == 3
    assert checkpoint.written(1, 2) == (10 + 100 + 7, 2)
    assert checkpoint.written(2, 3) == (100 + 7 + 1_000, 2)
    assert checkpoint.written(7, 9) == (0, 0)
    assert checkpoint.state_bytes() == 1_111 + 4 * 3 + 7


def test_a_batch_lasts_from_its_offsets_to_its_commit(checkpoint: RunningSystems) -> None:
    assert checkpoint.batch_ms(1) == [pytest.approx(250), pytest.approx(250)]
