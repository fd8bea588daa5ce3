"""Assembles notify: the threads that read topics and find problems, the outbox, and the thread that sends."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.lag.definitions import STUCK_MS, WINDOW_MS
from kafka_why.lifetimes import Startable
from kafka_why.notify.courier import BackOff, Courier, CourierThread, Kept, RateLimit
from kafka_why.notify.events import EndedRebalances, EventsFollower, OffsetsEvents, PolledEvents, ends_of
from kafka_why.notify.messages import Filter, Link, Outbox, Taken
from kafka_why.notify.problems import Episodes, Sources, TroublesThread
from kafka_why.notify.receiver import Answer
from kafka_why.notify.request_bodies import Shape
from kafka_why.now import now_ms
from kafka_why.page.fleet import Fleet
from kafka_why.page.topics_followers import GroupsFollower, ServiceFollower, ServiceTopics
from kafka_why.service_state import StateReader
from kafka_why.topic_reader import BrokersOwn, FollowerThread

SETTLED_MS = max(STUCK_MS, WINDOW_MS) + 60_000
"""The time after a start in which this process may not yet detect what the previous one detected: see
`Episodes`.
"""
_READER = "notify"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The settings for sending messages: a function that sends a body, its format, and the rate limit."""

    post: Callable[[bytes], Answer]
    shape: Shape
    per_minute: int


class Notifier(Startable):
    """The threads of `notify`, which read and send until stopped. Its state is saved in `folder`
    (`kafka_why.notify.courier`). `source` is the topic that it reads, or polls of the groups. Polls have
    no positions, so rebalances that ended while notify did not run are not sent.

    At the first start the constructor saves the ends of the topic. It raises FolderError if the folder
    belongs to another topic or cannot be written, and KafkaError.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        source: TopicLayout | BrokersOwn,
        folder: Path,
        delivery: Delivery,
        wanted: Filter,
        link: Link,
        metrics_url: str | None = None,
    ) -> None:
        layout = source if isinstance(source, TopicLayout) else None
        topic = KAFKAS_OFFSETS_TOPIC if layout is None else layout.events_topic
        kept = Kept(folder, topic)
        if source is not BrokersOwn.POLLS and not kept.positions:  # the first start
            kept.deliver([], Taken(ends_of(client_config, topic), []))
            kept.save()
        self._outbox = outbox = Outbox()
        fleet = Fleet(layout)
        ended = EndedRebalances(outbox, wanted, link, kept.sent)
        readers: tuple[GroupsFollower | OffsetsEvents | PolledEvents, *tuple[FollowerThread, ...]]
        topics = None
        if source is BrokersOwn.POLLS:
            readers = (PolledEvents(client_config, fleet, ended),)
        elif layout is None:
            readers = (OffsetsEvents(client_config, fleet, ended, kept.positions),)
        else:
            topics = ServiceTopics(is_observed=layout.is_observed)
            readers = (
                GroupsFollower(client_config, layout, fleet, _READER),
                EventsFollower(client_config, layout, ended, kept.positions),
                ServiceFollower(client_config, layout, topics, _READER),
            )
        state = None if metrics_url is None else StateReader(metrics_url)
        sources = Sources(fleet, topics, state, readers[0].read_age_s)
        episodes = Episodes(
            kept.open,
            settled_ms=now_ms() + SETTLED_MS,
            is_wanted=wanted.wants,
            link=link,
            again_ms=delivery.shape.again_ms,
        )
        self._readers = (*readers, TroublesThread(sources, episodes, outbox))
        courier = Courier(
            outbox,
            delivery.post,
            delivery.shape,
            kept,
            RateLimit(delivery.per_minute),
            BackOff(random.random),
        )
        self._courier = CourierThread(courier, outbox)

    def start(self) -> None:
        """Start the threads."""
        self._courier.start()
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """Wait for the request under way, save what was delivered, and stop reading. Messages that are still
        waiting are found again after the next start.
        """
        self._outbox.close()
        self._courier.stop()
        for reader in self._readers:
            reader.stop()
