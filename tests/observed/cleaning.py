"""The broker's own log cleaner at `__consumer_offsets`, which cleans up to the time that a test names."""

from collections import defaultdict
from contextlib import closing
from pathlib import Path

from kafka.admin import ConfigResource, ConfigResourceType

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.now import now_ms
from kafka_why.stored_log import StoredLog
from tests.harness.waiting import wait_until

_NEVER_MS = 2**62
_LAG = "min.compaction.lag.ms"
_OF_TOPIC = {
    # A segment is cleaned as a whole, so they are short.
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    _LAG: str(_NEVER_MS),
}


class Cleaner:
    """A log cleaner that cleans only on request. `log_dir` is the folder of the broker's logs."""

    def __init__(self, client_config: ClientConfig, log_dir: Path) -> None:
        self._client_config, self._log_dir = client_config, log_dir
        self._alter(_OF_TOPIC)

    def clean_before(self, at_ms: int) -> int:
        """Have the records before a time compacted, but for those in a segment with later ones. Return the
        time from which on none was.
        """
        with StoredLog(self._client_config, KAFKAS_OFFSETS_TOPIC) as log:
            firsts = log.offsets(at_ms)
        bases = self._bases()
        goals = {
            number: max(base for base in bases[number] if first < 0 or base <= first)
            for number, first in firsts.items()
        }
        lag_ms = now_ms() - at_ms
        self._alter({_LAG: str(lag_ms)})
        wait_until(lambda: self._is_clean(goals), "compaction")
        self._alter({_LAG: str(_NEVER_MS)})
        return now_ms() - lag_ms

    def _bases(self) -> dict[int, list[int]]:
        """Return the first offset of each segment, by partition."""
        found: dict[int, list[int]] = defaultdict(list)
        for path in self._log_dir.glob(f"{KAFKAS_OFFSETS_TOPIC}-*/*.log"):
            found[int(path.parent.name.rpartition("-")[2])].append(int(path.stem))
        return found

    def _is_clean(self, goals: dict[int, int]) -> bool:
        path = self._log_dir / "cleaner-offset-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        cleaned = {
            int(number): int(offset)
            for topic, number, offset in map(str.split, lines)
            if topic == KAFKAS_OFFSETS_TOPIC
        }
        return all(cleaned.get(number, 0) >= goal for number, goal in goals.items())

    def _alter(self, settings: dict[str, str]) -> None:
        topic = ConfigResource(ConfigResourceType.TOPIC, KAFKAS_OFFSETS_TOPIC, configs=settings)
        with closing(kafka_clients.admin(self._client_config)) as admin:
            admin.alter_configs([topic])
