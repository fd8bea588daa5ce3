"""The frame of random logs that are played against the core: their requests have the epochs of that run.

A log is then one like any other. Its clients, and what they send, are those of the kinds of groups
(`consumer_log`, `mixed_log`, `share_log`, `streams_log`).
"""

from random import Random
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
PAUSES_MS = (0, 0, 1, 400, 1_000, 5_000, 5_000, 20_000, 46_000)


class PlayedLog:
    """The play of one log: `rows` is the log so far, `rules` are the rows that applied so far."""

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

    def _news_of_topics(self, group: ConsumerGroup | ShareGroup | StreamsGroup) -> TopicImages:
        """Return what the watcher sends: the topics that differ from the cluster's."""
        news: TopicImages = {}
        for name in sorted({*group.topics, *group.unknown_topics()}):
            known, image = group.topics.get(name), self.cluster.now.get(name)
            seen = None if known is None else TopicImage(UUID(bytes=known.topic_id), known.partitions)
            if name not in group.topics or seen != image:
                news[name] = image
        return news
