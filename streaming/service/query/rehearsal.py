"""The rehearsal: a query that keeps a standby's Spark warm and writes nothing.

A JVM's first query takes seconds: Java loads Spark's classes, Python workers start and import this package. A
standby does that before it takes over. The rehearsal reads clock records only, so it has no state, and its
checkpoint is in the standby's own folder.
"""

import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import CLOCK_PATTERN
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Startable
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.session import Session
from streaming.service.query.spark_keeper import SparkKeeper

# Spark ends Python workers that are idle for a minute.
INTERVAL_S = 20

log = structlog.get_logger()


class Rehearsal(Startable):
    """A rehearsal from `start` to `stop`. If it fails, a takeover takes longer, until `check` starts it
    again.

    `folder` is the standby's own. `check` returns soon after `stopping` is set.
    """

    def __init__(
        self,
        session: Session,
        client_config: ClientConfig,
        layout: TopicLayout,
        folder: Path,
        stopping: threading.Event,
    ) -> None:
        self._session = session
        self._client_config = client_config
        self._operator = Operator(layout, (ConfigEpoch(0, CoordinatorConfig()),))
        self._folder = folder / "rehearsal"
        self._spark = SparkKeeper(session, stopping, pause=stopping.wait, has_standby=True)
        self._query: StreamingQuery | None = None
        self._started_s = 0.0
        self._restarts = 0

    def start(self) -> None:
        """Watch Spark, and start the query."""
        self._spark.start()
        self._start_query()

    def _start_query(self) -> None:
        """Start the query, but not on a cluster, whose executors do not reach this folder."""
        self._started_s = time.monotonic()
        self._restarts = self._session.restarts
        self._query = None
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._session.is_local:
            return
        layout = self._operator.layout
        requests = pipeline.read_requests(self._session.spark, self._client_config, layout, "latest")
        clock = requests.where(F.col("value").cast("string").rlike(CLOCK_PATTERN))
        output = pipeline.coordinate(clock, self._operator, shards=self._operator.shards)
        try:
            self._query = (
                output.where(F.col("topic") == "")  # the query has no output
                .writeStream.queryName("rehearsal")
                .format("kafka")
                .options(**pipeline.cluster_options(self._client_config))
                .option("checkpointLocation", self._folder.absolute().as_uri())
                .outputMode("append")
                .trigger(processingTime=f"{INTERVAL_S} seconds")
                .start()
            )
        except (PySparkException, Py4JError) as error:
            log.warning("the standby's Spark is not kept warm", error=str(error).partition("\n")[0])

    def check(self) -> None:
        """Start Spark again if its JVM has ended, and start the query again if it has ended, for example
        because a broker was unreachable. Raises SparkEnded.
        """
        self._spark.keep(self._poll)

    def _poll(self) -> None:
        self._session.ping()
        if self._restarts != self._session.restarts:
            self._start_query()
        if time.monotonic() - self._started_s < INTERVAL_S:
            return
        self._spark.worked()
        if self._query is None or not self._query.isActive:
            self._start_query()

    def stop(self) -> None:
        """End the query, remove its checkpoint, and end the watch. Spark keeps running."""
        if self._query is not None:
            with suppress(PySparkException, Py4JError):
                self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._spark.stop()
