"""The cluster of a scenario: its topics, as the gateway and the topic watcher see them."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from kafka_why.contract.kafka.requests import (
    AnyRequest,
    CommittedTopic,
    OffsetCommit,
    OffsetFetch,
    Protocol,
    RegexResolution,
    TopicPartitions,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    TopicImage,
    TopicImages,
)
from kafka_why.contract.protocols.subscriptions import ProtocolError, decode_subscription
from records import topic_patterns
from state.kafka.modern import AnyModernGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness.offset_requests import topic_id

T = TypeVar("T", CommittedTopic, TopicPartitions)


class Cluster:
    """The topics by name. Until the first `change` the brokers cannot be reached, so no topic is known.

    `labels` are the names of all topics that ever existed, by id. A recreated topic `foo` is labelled `foo'`.
    """

    def __init__(self) -> None:
        self.labels: dict[UUID, str] = {}
        self.topics: dict[str, TopicImage] = {}
        self._created: Counter[str] = Counter()
        self._is_reachable = False

    def change(self, counts: dict[str, str]) -> None:
        """Set the partition counts of topics, which are texts. `none` deletes a topic."""
        self._is_reachable = True
        for name, count in counts.items():
            if count == "none":
                del self.topics[name]
                continue
            if name not in self.topics:
                label = name + "'" * self._created[name]
                self._created[name] += 1
                self.topics[name] = TopicImage(topic_id(label), 0)
                self.labels[self.topics[name].id] = label
            self.topics[name] = TopicImage(self.topics[name].id, int(count))

    def topic_metadata(self, names: Iterable[str] | None) -> TopicImages | None:
        """Return the metadata that a gateway adds to a request with these topics (rows MI1, MI2)."""
        if names is None or not self._is_reachable:
            return None
        return {name: self.topics.get(name) for name in sorted(set(names))}

    def metadata_for_protocols(self, protocols: list[Protocol]) -> TopicImages | None:
        """Return the metadata that a gateway adds to a JoinGroup, or None if no subscription is readable."""
        names: set[str] = set()
        is_any_readable = False
        for protocol in protocols:
            try:
                subscription = decode_subscription(protocol.metadata)
            except ProtocolError:
                continue
            is_any_readable = True
            names.update(subscription.topics, (owned.topic for owned in subscription.owned_partitions))
        return self.topic_metadata(names) if is_any_readable else None

    def resolve(self, pattern: str, at_ms: int) -> RegexResolution | None:
        """Return the topics that match a pattern (row RX1), or None if the brokers cannot be reached."""
        if not self._is_reachable:
            return None
        return topic_patterns.resolve(pattern, self.topics, at_ms)

    def resolve_for_client(self, pattern: str, at_ms: int, may: str | None) -> RegexResolution | None:
        """Return the topics that a gateway finds for a client that may DESCRIBE topics matching `may`.

        Without `may` the gateway checks no ACLs.
        """
        result = self.resolve(pattern, at_ms)
        if result is None or may is None or result.error is not None:
            return result
        allowed = set(topic_patterns.matching(may, result.topics))
        topics = {name: image for name, image in result.topics.items() if name in allowed}
        return replace(result, topics=topics, seen=topic_patterns.digest(sorted(result.topics)))

    def with_topics(self, request: AnyRequest) -> AnyRequest:
        """Return a request with the topic metadata, or the topic ids (row MI3), that a gateway adds."""
        if isinstance(request, OffsetCommit | TxnOffsetCommit):
            return replace(request, topics=[self._with_id(topic) for topic in request.topics])
        if isinstance(request, OffsetFetch) and request.topics is not None:
            return replace(request, topics=[self._with_id(topic) for topic in request.topics])
        if isinstance(request, AlterShareGroupOffsets):
            return replace(request, images=self.topic_metadata(topic.topic_name for topic in request.topics))
        if isinstance(request, DeleteShareGroupOffsets):
            return replace(request, images=self.topic_metadata(request.topics))
        return request

    def _with_id(self, topic: T) -> T:
        image = self.topics.get(topic.name)
        return topic if image is None or topic.topic_id is not None else replace(topic, topic_id=image.id)

    def differences(self, group: AnyModernGroup | StreamsGroup) -> TopicImages:
        """Return the metadata that the watcher sends the group, because the group does not have it."""
        names = sorted({*group.topics, *group.unknown_topics()})
        return {name: self.topics.get(name) for name in names if not self._is_known(group, name)}

    def _is_known(self, group: AnyModernGroup | StreamsGroup, name: str) -> bool:
        image, known = self.topics.get(name), group.topics.get(name)
        if image is None:
            return known is None and name in group.topics
        return known is not None and (image.id.bytes, image.partitions) == (known.topic_id, known.partitions)
