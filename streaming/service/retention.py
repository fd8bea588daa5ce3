"""The minimum retention of each topic, and the damage if it is shorter.

Brokers delete by time and by size. Deletion by size depends on the load, so it guarantees no time. Other
settings delete nothing earlier: large or old segments only delay a deletion, and local.retention.* deletes
the local copy of records in remote storage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafka_why.contract.layout import TopicLayout

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# After a longer downtime requests may have been deleted, and the coordinator refuses to continue.
LONGEST_DOWNTIME_MS = 3 * DAY_MS
# A restart after a crash reads the early answers since the last batch, at most 5 minutes.
_RESTART_MS = HOUR_MS // 4

Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeastRetention:
    """The minimum time for which a topic has to keep its records, whatever their size."""

    ms: int
    loss: str  # a clause about the damage that a shorter retention does
    is_required: bool = True  # a topic with a shorter retention is refused, not only logged

    def problems(self, topic: str, found: Settings) -> Iterator[str]:
        """Yield the problem of each setting that lets this topic delete its records too early."""
        retention_ms, retention_bytes = int(found["retention.ms"]), int(found["retention.bytes"])
        if 0 <= retention_ms < self.ms:
            yield f"{topic} has retention.ms={retention_ms}, at least {self.ms} is needed: {self.loss}"
        if retention_bytes >= 0:
            yield (
                f"{topic} has retention.bytes={retention_bytes}, -1 is needed: {self.loss} "
                f"(kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics "
                f"--entity-name {topic} --add-config retention.bytes=-1)"
            )


def least_retentions(layout: TopicLayout) -> Mapping[str, LeastRetention]:
    """Return the least retention of each topic. Topics that are only compacted have none."""
    downtime_ms = LONGEST_DOWNTIME_MS
    return {
        layout.requests_topic: LeastRetention(
            downtime_ms, "a coordinator that was down would find requests gone"
        ),
        layout.txn_markers_topic: LeastRetention(
            downtime_ms, "the offsets of transactions whose outcome is gone would stay pending"
        ),
        layout.responses_topic: LeastRetention(
            _RESTART_MS, "a restarted coordinator would not know which requests its replica has answered"
        ),
        layout.sightings_topic: LeastRetention(
            downtime_ms, "an observer that was down would find sightings gone"
        ),
        layout.events_topic: LeastRetention(
            downtime_ms, "`why`, the page and `notify` would miss what happened", is_required=False
        ),
        layout.dead_letters_topic: LeastRetention(
            downtime_ms, "the records that were not handled would be unknown", is_required=False
        ),
        layout.telemetry_topic: LeastRetention(
            downtime_ms, "`why` would miss what members reported", is_required=False
        ),
    }
