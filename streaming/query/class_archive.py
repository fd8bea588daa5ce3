"""An archive of Spark's classes, which the JVM maps at its start instead of reading and verifying each class.

The archive halves the processor time of a start (docs/operations.md, "How long a start takes"). ``python -m
streaming.query.class_archive`` makes it: the command runs the coordinator's query on generated input, and the
JVM writes its loaded classes when it exits. The archive fits one Java and one set of Spark's jars. If either
changes, the JVM ignores the archive until the command makes it again.

Source: JEP 350, dynamic archives of application class-data sharing.
"""

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from embedded.paths import class_archive
from records.codec import clock_record
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.pipeline import coordinate
from streaming.query.session import DEFAULT_JAVA_OPTIONS, Session

# The JVM takes some 5 s to write the archive, on a busy machine a minute.
_WRITE_TIMEOUT_S = 300.0
_LOG_TAIL_CHARS = 2_000
_BATCHES = 3
_BATCHES_TIMEOUT_S = 300.0


class ArchiveFailed(RuntimeError):
    """The archive could not be made. The message has the reason. Without an archive starts are slower."""


def make(archive: Path) -> None:
    """Make the archive, or replace it. Raises ArchiveFailed, SparkFailed, JavaNotFound or JarsUnavailable."""
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveFailed(f"{archive.parent} cannot be written: {error.strerror}") from error
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        written = Path(folder) / archive.name
        options = {DEFAULT_JAVA_OPTIONS: f'"-XX:ArchiveClassesAtExit={written}"'}
        session = Session(log_path=Path(folder) / "spark.log", ui_port=0, extra=options)
        try:
            _run_query(session.spark, Path(folder) / "checkpoint")
        finally:
            session.stop(_WRITE_TIMEOUT_S)
        if not written.exists():
            raise ArchiveFailed(
                f"the JVM wrote no archive: {(Path(folder) / 'spark.log').read_text()[-2000:]}"
            )
        written.replace(archive)


def _run_query(spark: SparkSession, checkpoint: Path) -> None:
    """Run some batches of the coordinator's query, each with a clock record and an invalid record."""
    records = spark.readStream.format("rate").load()
    is_clock = F.col("value") % 2 == 0
    made_up = records.select(
        F.when(is_clock, None).otherwise(b"group").alias("key"),
        F.when(is_clock, clock_record(1)).otherwise(b"nothing").alias("value"),
        F.lit(0).alias("partition"),
        F.col("value").alias("offset"),
        "timestamp",
    )
    operator = Operator(TopicLayout.named(), (ConfigEpoch(0, CoordinatorConfig()),))
    running = (
        coordinate(made_up, operator)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .start()
    )
    give_up_s = time.monotonic() + _BATCHES_TIMEOUT_S
    while running.lastProgress is None or running.lastProgress["batchId"] < _BATCHES:
        if running.awaitTermination(1) or time.monotonic() > give_up_s:
            raise ArchiveFailed("the query did not run")
    running.stop()


def main() -> None:
    """``python -m streaming.query.class_archive``."""
    try:
        make(class_archive())
    except ArchiveFailed as error:
        sys.exit(f"no archive of Spark's classes was made: {error}")


if __name__ == "__main__":
    main()
