"""Options of `run` that say where Spark runs: they are checked before anything starts."""

import pytest
from click.testing import CliRunner

from cli.option_object import pop_fields
from cli.run import run
from cli.spark_options import SparkOptions


def test_the_options_reach_the_session() -> None:
    words = ["--master", "spark://a:7077", "--driver-host", "10.0.0.1", "--state-partitions", "2"]
    conf = ["--spark-conf", "spark.executor.memory=1g", "--spark-conf", "spark.executor.cores = 2"]
    context = run.make_context("run", words + conf)
    assert pop_fields(SparkOptions, context.params) == SparkOptions(
        "spark://a:7077", "10.0.0.1", 2, {"spark.executor.memory": "1g", "spark.executor.cores": "2"}
    )


def test_without_options_spark_is_local_and_the_state_has_the_partitions_that_it_has() -> None:
    assert pop_fields(SparkOptions, run.make_context("run", []).params) == SparkOptions(None, None, None, {})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--master", "mesos://a:5050"], "'--master': 'mesos://a:5050' is not a master of Spark"),
        (["--spark-conf", "spark.speculation=true"], "'--spark-conf': spark.speculation cannot be changed"),
        (["--spark-conf", "spark.executor.memory"], "is not NAME=VALUE"),
        (["--state-partitions", "0"], "'--state-partitions': 0 is not in the range"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], why: str) -> None:
    result = CliRunner().invoke(run, words)
    assert result.exit_code == 2
    assert why in result.output
