"""What the rows about endurance judge: a leak is found, and a size that rises and falls is none."""

import os
from pathlib import Path
from zipfile import ZipFile

import pytest

from bench.load.load_result import LoadResult
from bench.memory import DRIVER, JVM, MIB, REPLICA, WORKERS, growth, memory_bytes, parts_of
from bench.report import Figure
from bench.rows import checkpoint, endurance
from bench.rows.checkpoint import Sizes, growth_of_most, sizes_in
from bench.rows.endurance import HEAP, THE_GATEWAY, Endured, Slice
from bench.rows.restarts import snapshot_bytes

PARTS = (DRIVER, JVM, WORKERS, REPLICA, THE_GATEWAY)
SLICES = 20


def endured(leaking: str | None, mib_a_slice: int = 1) -> Endured:
    """Ten minutes of 100 MiB in each part, of which one leaks."""
    slices = []
    for number in range(SLICES):
        sizes = {part: (100 + (part == leaking) * number * mib_a_slice) * MIB for part in PARTS}
        heap = (100 + (leaking == HEAP) * number * mib_a_slice) * MIB if number % 4 == 0 else None
        slices.append(Slice(LoadResult(due_s=[0.0], latency_s=[0.1], took_s=1.0), sizes, heap))
    return Endured(30.0, 1.0, slices)


def not_reached(figures: list[Figure]) -> list[str]:
    return [figure.what for figure in figures if figure.verdict == "NOT"]


def test_memory_that_stays_reaches_every_line() -> None:
    assert not_reached(endurance.found_of(endured(None)).figures) == []


@pytest.mark.parametrize("part", [*PARTS, HEAP])
def test_a_part_that_grows_by_a_mib_each_half_minute_does_not(part: str) -> None:
    figures = endurance.found_of(endured(part, 2 if part == JVM else 1)).figures
    assert not_reached(figures) == [f"endurance, memory: {part}, growth"]


def test_one_large_sample_is_no_growth() -> None:
    assert growth([100.0] * 19 + [200.0]) == 0
    assert growth([100.0] * 10 + [110.0] * 10) == pytest.approx(0.1)


def test_a_size_that_rises_and_falls_is_bounded_and_one_that_rises_is_not() -> None:
    saw = [float(100 + n % 7 * 50) for n in range(100)]
    assert growth_of_most(saw) == 0
    assert growth_of_most([100.0 + n for n in range(100)]) > checkpoint.GROWTH_LIMIT

    def judged(bytes_of: list[float]) -> list[str]:
        samples = [Sizes((n + 1) * 100) for n in range(len(bytes_of))]
        for sample, size in zip(samples, bytes_of, strict=True):
            sample.files["spark/state"], sample.sizes["spark/state"] = 7, int(size) * MIB
        return not_reached(checkpoint.found_of(samples).figures)

    assert judged(saw) == []
    (leak,) = judged([100.0 + 2 * n for n in range(100)])
    assert leak.endswith("size, growth")


def test_files_are_counted_by_the_folders_of_sparks_checkpoint(tmp_path: Path) -> None:
    for name, size in {
        "identity.json": 5,
        "owners/1.json": 7,
        "spark.log": 1_000,
        "spark/metadata": 1,
        "spark/offsets/0": 2,
        "spark/state/0/0/1.changelog": 3,
        "spark/state/0/0/SSTs/1.sst": 4,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    found = sizes_in(tmp_path, 8)
    assert found.files == {"beside Spark's": 2, "spark": 1, "spark/offsets": 1, "spark/state": 2}
    assert found.sizes == {"beside Spark's": 12, "spark": 1, "spark/offsets": 2, "spark/state": 7}
    assert (found.batch, found.log_bytes) == (8, 1_000)


def test_a_snapshot_is_its_file_and_those_that_it_names(tmp_path: Path) -> None:
    metadata = b"""v1
{"sstFiles":[{"localFileName":"8.sst","dfsSstFileName":"8-x.sst","sizeBytes":1000},
{"localFileName":"9.sst","dfsSstFileName":"9-x.sst","sizeBytes":500}],"numKeys":64}"""
    with ZipFile(tmp_path / "7.zip", "w") as snapshot:
        snapshot.writestr("metadata", metadata.replace(b",\n", b","))
    assert snapshot_bytes(tmp_path / "7.zip") == 1500 + (tmp_path / "7.zip").stat().st_size


def test_the_memory_of_a_process_is_its_own() -> None:
    held = bytearray(os.urandom(1)) * (64 * MIB)
    with_it = memory_bytes([os.getpid()])
    del held
    assert 60 * MIB < with_it - memory_bytes([os.getpid()]) < 70 * MIB
    assert parts_of(os.getpid())[DRIVER] == [os.getpid()]
