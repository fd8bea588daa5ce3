"""What the rows about endurance judge: a leak is found, and a size that rises and falls is none."""

import pytest

from bench.load.load_result import LoadResult
from bench.memory import DRIVER, JVM, MIB, REPLICA, WORKERS
from bench.report import Figure
from bench.rows import checkpoint, endurance
from bench.rows.checkpoint import Sizes, growth_of_most
from bench.rows.endurance import HEAP, THE_GATEWAY, Endured, Slice

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


def test_constant_memory_meets_every_limit() -> None:
    assert not_reached(endurance.found_of(endured(None)).figures) == []


@pytest.mark.parametrize("part", [*PARTS, HEAP])
def test_growing_memory_of_a_part_misses_its_limit(part: str) -> None:
    figures = endurance.found_of(endured(part, 2 if part == JVM else 1)).figures
    assert not_reached(figures) == [f"endurance, memory: {part}, growth"]


def test_only_a_steadily_rising_size_is_unbounded() -> None:
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
