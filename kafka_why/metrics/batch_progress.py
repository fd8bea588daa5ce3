"""Spark's report on the progress of a batch."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct


class StateOperatorProgress(Struct, frozen=True, rename="camel"):
    """The relevant fields of a stateful operator's progress."""

    num_rows_dropped_by_watermark: int = 0
    all_updates_time_ms: int = 0  # time of the pass over the rows
    all_removals_time_ms: int = 0  # time of the pass over the deadlines
    commit_time_ms: int = 0  # time to commit the state


class SourceProgress(Struct, frozen=True, rename="camel"):
    """The progress of a Kafka source, by topic and partition."""

    end_offset: dict[str, dict[str, int]] | None = None  # after the last record read
    latest_offset: dict[str, dict[str, int]] | None = None  # end when Spark planned the batch


class BatchProgress(Struct, frozen=True, rename="camel"):
    """The progress of one batch. Source: org.apache.spark.sql.streaming.StreamingQueryProgress."""

    batch_id: int
    num_input_rows: int = 0
    duration_ms: dict[str, int] = {}  # by stage; `triggerExecution` is the whole batch
    event_time: dict[str, str] = {}  # ISO 8601 times by name; `watermark` is the watermark
    state_operators: list[StateOperatorProgress] = []
    sources: list[SourceProgress] = []
    observed_metrics: dict[str, dict[str, int]] = {}

    @property
    def is_executed(self) -> bool:
        """False if Spark found no data and did not run the batch. The next batch then has the same id."""
        return "addBatch" in self.duration_ms

    @property
    def total_ms(self) -> int:
        """The duration of the whole batch."""
        return self.duration_ms.get("triggerExecution", 0)

    @property
    def rows_dropped(self) -> int:
        """The number of rows that Spark dropped because they were older than the watermark."""
        return sum(operator.num_rows_dropped_by_watermark for operator in self.state_operators)

    @property
    def watermark_ms(self) -> int:
        """The watermark during the batch, or 0 if there is none yet."""
        text = self.event_time.get("watermark")
        return int(datetime.fromisoformat(text).timestamp() * 1000) if text else 0

    @property
    def backlog(self) -> int:
        """The number of the source's records that were not read yet."""
        log_ends = _by_partition(source.latest_offset for source in self.sources)
        read_ends = self.end_offsets
        return sum(max(0, end - read_ends.get(partition, 0)) for partition, end in log_ends.items())

    @property
    def end_offsets(self) -> dict[tuple[str, int], int]:
        """The offset after the last record read, by (topic, partition)."""
        return _by_partition(source.end_offset for source in self.sources)

    def ends_of(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record read from each partition of a topic."""
        return {partition: end for (name, partition), end in self.end_offsets.items() if name == topic}


def _by_partition(offsets: Iterable[dict[str, dict[str, int]] | None]) -> dict[tuple[str, int], int]:
    """Return the offsets of several sources, each by topic and partition, in one dict."""
    return {
        (topic, int(partition)): offset
        for offsets_of_source in offsets
        for topic, partitions in (offsets_of_source or {}).items()
        for partition, offset in partitions.items()
    }
