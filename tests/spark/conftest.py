"""One Spark session for the operator's tests, and a bench for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streaming.query.session import Session
from tests.spark.harness import Bench

ROOT = Path(__file__).parents[2]


# Stopped after the last of these tests, because a process can hold one Spark and later tests run a
# coordinator.
@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # Python workers import the operators that tests define.
        patch.setenv("PYTHONPATH", str(ROOT))
        with Session(log_path=tmp_path_factory.mktemp("spark") / "spark.log", cores=2) as session:
            yield session.spark


@pytest.fixture
def make_bench(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes benches and stops them at the test's end. Keywords are as in `Bench`."""
    benches: list[Bench] = []

    def make(**given: Any) -> Bench:
        bench = Bench(spark, tmp_path / f"bench-{len(benches)}", **given)
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        bench.stop()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Return a bench whose operator has no initial delay."""
    return make_bench()
