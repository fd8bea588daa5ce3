"""How Spark's JVM is started."""

from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from embedded.paths import spark_archive


def test_jvm_maps_the_archive_of_sparks_classes(spark: SparkSession) -> None:
    """`make setup` makes the archive. A JVM that finds it unfit starts without it, and slower."""
    assert spark_archive().exists()
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(spark_archive()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
