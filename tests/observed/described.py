"""Share groups and streams groups, which Kafka's own client describes: librdkafka cannot."""

from kafka_why.now import now_ms
from kafka_why.why.model import CauseKind
from tests.harness.kafkas_groups import KafkasGroup
from tests.observed.applications import StreamsPlay
from tests.observed.play import PARTITIONS, QUIET_S, Play


class SharePlay(Play):
    """Share consumers. No listener tells them of partitions, so the coordinator's own answer counts."""

    described_as = "share"
    # The partitions of a topic that is new to the group are initialized first, and then assigned.
    also_at_start = (CauseKind.PARTITIONS_INITIALIZED,)

    def grow(self, partitions: int = PARTITIONS + 2) -> None:
        causes: dict[CauseKind, set[str]] = {
            CauseKind.TOPICS_CHANGED: set(),
            CauseKind.PARTITIONS_INITIALIZED: set(),
        }
        with self.step("the topic gets partitions", causes):
            self.add_partitions(partitions)

    def held(self) -> dict[str, list[str]]:
        found = self.described()
        return {} if found is None else {name: sorted(of) for name, of in found.held.items()}

    def is_settled(self, began_ms: int) -> bool:
        """Return True if all partitions have been assigned for a while."""
        found = self.described()
        if self._last != found or found is None or not found.has_target:
            self._last, self._since_ms = found, now_ms()
        living = self._living()
        held = {} if found is None else found.held
        numbers = {partition for of in held.values() for partition in of}
        is_all = len(numbers) == self._partitions[self.topic] or not living
        return now_ms() - self._since_ms > QUIET_S * 1_000 and is_all and held.keys() == living.keys()

    _last: KafkasGroup | None = None
    _since_ms = 0


class StreamsEpochsPlay(StreamsPlay):
    """Instances of Kafka Streams by the streams protocol."""

    described_as = "streams"
    # The first instance has no tasks before the broker has made the internal topics.
    also_at_start = (CauseKind.TOPICS_CHANGED,)

    def held(self) -> dict[str, list[str]]:
        """Tasks as reports name them: `active 0:2`."""
        return {
            name: sorted(task.replace(":", " ").replace("_", ":") for task in tasks)
            for name, tasks in super().held().items()
        }
