"""The base of random logs that are played against the core, so that their requests have the epochs of that
run.

Afterwards a log is like any other. The subclasses for the kinds of groups (`consumer_log`, `mixed_log`,
`share_log`, `streams_log`) have the clients and their requests.
"""

from random import Random
from typing import Self
from uuid import UUID

from kafka_why.contract.kafka.requests import AnyRequest
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from state.config import CoordinatorConfig
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.common import kafka_effects
from tests.harness.consumer_clients import Cluster
from tests.harness.random_log import GROUPS, PARTITION_OF

BEGIN_MS = 1_000_000
INTERVAL_MS = 5_000
Log = tuple[int, int, CoordinatorConfig]
"""A log's seed, number of moves, and settings."""
PAUSES_MS = (0, 0, 1, 400, 1_000, 5_000, 5_000, 20_000, 46_000)


class PlayedLog:
    """The play of one log. `rows` is the log so far, `rules` are the rows of docs/rules.md applied so far."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(self.random)
        self.rows: list[Row] = []
        self.rules: set[str] = set()
        self.at_ms = BEGIN_MS
        self.timelines = {
            group_id: Timeline(group_id, None, config, step=batches.checked_step) for group_id in GROUPS
        }
        self._offsets = dict.fromkeys(PARTITION_OF.values(), -1)

    @classmethod
    def played(cls, log: Log) -> Self:
        """Return the play of a log."""
        seed, moves, config = log
        play = cls(seed, config)
        play.play(moves)
        return play

    def play(self, moves: int) -> None:
        """Make this many random moves."""
        raise NotImplementedError

    def _append(self, request: AnyRequest) -> Row:
        partition = PARTITION_OF[request.group_id]
        self._offsets[partition] += 1
        row = Row(self.at_ms, f"requests-{partition}-{self._offsets[partition]}", request)
        self.rows.append(row)
        return row

    def _handle(self, request: AnyRequest) -> list[Effects]:
        """Append the request to the log, and apply it."""
        timeline = self.timelines[request.group_id]
        timeline.apply(self._append(request))
        assert not timeline.faults, timeline.faults[0].traceback
        steps = kafka_effects(timeline.drain_effects())
        self.rules.update(rule for effects in steps for rule in effects.rules)
        return steps

    def _changed_topics(self, group: ConsumerGroup | ShareGroup | StreamsGroup) -> TopicImages:
        """Return the topics in which the group differs from the cluster. The watcher sends them."""
        changed: TopicImages = {}
        for name in sorted({*group.topics, *group.unknown_topics()}):
            known, image = group.topics.get(name), self.cluster.now.get(name)
            known_image = None if known is None else TopicImage(UUID(bytes=known.topic_id), known.partitions)
            if name not in group.topics or known_image != image:
                changed[name] = image
        return changed
