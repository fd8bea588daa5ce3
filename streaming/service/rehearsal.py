"""The rehearsal: a query that keeps a standby's Spark warm and writes nothing.

A JVM's first query takes seconds: Java loads Spark's classes, Python workers start and import this package.
A standby has the time for that before it takes over. The rehearsal reads clock records only, so it has no
state, and its checkpoint is in the standby's own folder.
"""

import shutil
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from records.client_config import ClientConfig
from records.codec import CLOCK_PATTERN
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.jvm import SparkFailed
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.session import Session

# Spark ends Python workers that are idle for a minute.
INTERVAL_S = 20

log = structlog.get_logger()


class Rehearsal:
    """Runs from `start` to `stop`. If it fails, a takeover takes longer, until `check` starts it again."""

    def __init__(
        self, session: Session, client_config: ClientConfig, layout: TopicLayout, folder: Path
    ) -> None:
        self._session = session
        self._client_config = client_config
        self._operator = Operator(layout, (ConfigEpoch(0, CoordinatorConfig()),))
        self._folder = folder
        self._query: StreamingQuery | None = None
        self._started_s = 0.0

    def start(self) -> None:
        """Start the query. Executors of a cluster do not reach this folder, so there is none on a cluster."""
        self._started_s = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._session.is_local:
            return
        layout = self._operator.layout
        requests = pipeline.read_requests(self._session.spark, self._client_config, layout, "latest")
        clock = requests.where(F.col("value").cast("string").rlike(CLOCK_PATTERN))
        output = pipeline.coordinate(clock, self._operator, shards=self._operator.shards)
        try:
            self._query = (
                output.where(F.col("topic") == "")  # there is no output, and nothing of it may be written
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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Start the query again if it has ended, as after a broker was away.

        Raises SparkFailed if the JVM has ended: such a standby could not take over.
        """
        try:
            self._session.ping()
            has_ended = self._query is not None and not self._query.isActive
        except (Py4JError, OSError):
            raise SparkFailed("Spark's JVM has ended, so this standby could not take over") from None
        if has_ended and time.monotonic() - self._started_s > INTERVAL_S:
            self.start()

    def stop(self) -> None:
        """End the query and remove its checkpoint."""
        if self._query is not None:
            with suppress(PySparkException, Py4JError):
                self._query.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
