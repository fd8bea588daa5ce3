"""Archives of the classes of Spark and of the embedded broker, which a JVM maps at its start instead of
reading and verifying each class.

The archives halve the processor time of a start (docs/tuning.md, "How long a start takes"). ``python -m
streaming.query.class_archive`` creates them: it runs the coordinator's query on an embedded broker, and both
JVMs write their loaded classes when they exit. An archive fits one Java and one set of jars. If either
changes, the JVM ignores the archive until it is created again.

Source: JEP 350, dynamic archives of application class-data sharing.
"""

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from embedded.broker import BrokerFailed, EmbeddedBroker
from embedded.jars import broker_archive, spark_archive
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import clock_record
from kafka_why.contract.layout import TopicLayout
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.session import Session
from streaming.query.spark_settings import DEFAULT_JAVA_OPTIONS

# The JVM takes about 5 s to write the archive, on a busy machine a minute.
_WRITE_TIMEOUT_S = 300.0
_LOG_TAIL_CHARS = 2_000
_BATCHES = 3
_BATCHES_TIMEOUT_S = 300.0
_PAUSE_S = 0.2


class ArchiveFailed(RuntimeError):
    """An archive could not be created. The message has the reason. Without archives, starts are slower."""


def make(spark: Path, broker: Path) -> None:
    """Create or replace both archives in one folder. Raises ArchiveFailed, SparkFailed, JavaNotFound or
    JarsUnavailable.
    """
    try:
        spark.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveFailed(f"{spark.parent} cannot be written: {error.strerror}") from error
    with tempfile.TemporaryDirectory(dir=spark.parent) as folder:
        written = Path(folder)
        _run_both(written / spark.name, written / broker.name, written)
        for archive, log in ((spark, "spark.log"), (broker, "broker/broker.log")):
            if not (written / archive.name).exists():
                tail = (written / log).read_text()[-_LOG_TAIL_CHARS:]
                raise ArchiveFailed(f"the JVM wrote no {archive.name}: {tail}")
            (written / archive.name).chmod(0o644)  # the user who installs may not be the one who runs it
            (written / archive.name).replace(archive)


def _run_both(spark: Path, broker: Path, folder: Path) -> None:
    """Run both JVMs, which write their archives into the folder."""
    options = {DEFAULT_JAVA_OPTIONS: f'"-XX:ArchiveClassesAtExit={spark}"'}
    overrides = {"auto.create.topics.enable": "true"}
    try:
        with EmbeddedBroker(folder / "broker", overrides=overrides, archive_at_exit=broker) as running:
            session = Session(log_path=folder / "spark.log", ui_port=0, extra=options)
            try:
                _run_query(session.spark, running.client_config, folder / "checkpoint")
            finally:
                session.close(_WRITE_TIMEOUT_S)
    except (BrokerFailed, KafkaError) as error:
        raise ArchiveFailed(f"the query had no broker: {error}") from error


def _run_query(spark: SparkSession, client_config: ClientConfig, checkpoint: Path) -> None:
    """Run some batches of the coordinator's query, with clock records and invalid records."""
    layout = TopicLayout.named("archive", request_partitions=1, reply_partitions=1)
    operator = Operator(layout, (ConfigEpoch(0, CoordinatorConfig()),))
    with closing(kafka_clients.producer(client_config)) as producer:
        producer.send(layout.requests_topic, value=clock_record(0)).get()
        running = pipeline.start(spark, client_config, str(checkpoint), operator)
        give_up_s = time.monotonic() + _BATCHES_TIMEOUT_S
        while running.lastProgress is None or running.lastProgress["batchId"] < _BATCHES:
            producer.send(layout.requests_topic, value=clock_record(1)).get()
            producer.send(layout.requests_topic, key=b"group", value=b"nothing").get()
            if running.awaitTermination(_PAUSE_S) or time.monotonic() > give_up_s:  # type: ignore[arg-type]
                raise ArchiveFailed("the query did not run")
        running.stop()


def main() -> None:
    """Run the command ``python -m streaming.query.class_archive``."""
    try:
        make(spark_archive(), broker_archive())
    except ArchiveFailed as error:
        sys.exit(f"no archives of classes were made: {error}")


if __name__ == "__main__":
    main()
