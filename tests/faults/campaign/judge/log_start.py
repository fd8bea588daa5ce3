"""The start of a topic's log, looked at without a pause, so that the time of a loss is known."""

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_PAUSE_S = 0.005
_TIMEOUT_S = 10.0


class Look(NamedTuple):
    """What the brokers said: the topic's id, "" if there is none, and the first offset of each partition.

    `at_s` (monotonic) is when their answers were there.
    """

    at_s: float
    topic_id: str
    starts: Mapping[int, int]


class LogStart:
    """Looks at a topic during the block, in a thread."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._topic = topic
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        self._earliest = {TopicPartition(topic, number): earliest for number in range(partitions)}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log start", daemon=True)
        self.looks: list[Look] = []

    def __enter__(self) -> Self:
        self.looks.append(self._look())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def is_same_topic(self) -> bool:
        """Return True if the topic is the one of the first look."""
        return self.looks[-1].topic_id == self.looks[0].topic_id

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            self.looks.append(self._look())

    def _look(self) -> Look:
        try:
            described = self._admin.describe_topics(
                TopicCollection([self._topic]), request_timeout=_TIMEOUT_S
            )
            topic_id = str(described[self._topic].result().topic_id)
            found = self._admin.list_offsets(self._earliest, request_timeout=_TIMEOUT_S)
            starts = {place.partition: future.result().offset for place, future in found.items()}
        except KafkaException as error:
            if not _is_unknown(error):
                return self.looks[-1]._replace(at_s=time.monotonic())
            return Look(time.monotonic(), "", {})
        return Look(time.monotonic(), topic_id, starts)


def lost_s(looks: Sequence[Look], handled: Mapping[int, int]) -> float | None:
    """When records from these offsets on were found gone, or the topic was. None if nothing is gone."""
    for look in looks:
        is_another = look.topic_id != looks[0].topic_id
        if is_another or any(start > handled.get(number, 0) for number, start in look.starts.items()):
            return look.at_s
    return None


def stalled_s(looks: Sequence[Look], from_s: float, to_s: float) -> float:
    """The longest time without a look between these two times."""
    times = [from_s, *(look.at_s for look in looks if from_s < look.at_s < to_s), to_s]
    return max(later - earlier for earlier, later in pairwise(times))


def _is_unknown(error: KafkaException) -> bool:
    """Whether there is no such topic."""
    return error.args[0].name() in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID")
