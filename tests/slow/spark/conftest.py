"""The Spark session and the benches of the operator's tests. It ends with the last test of this folder."""

from tests.spark.conftest import bench, make_bench, spark

__all__ = ["bench", "make_bench", "spark"]
