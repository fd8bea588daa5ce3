"""The coordinator's own topics. To clients of the gateway they are internal topics, as Kafka's
__consumer_offsets is, and may not be changed: a record on the requests topic is a request in anybody's name.
"""

from collections.abc import Iterable
from uuid import UUID

from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost


class InternalTopics:
    """Which topics are internal; without `names` none is."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self.names_utf8 = frozenset(name.encode() for name in self.names)
        # All that the topics ever had: no id is used twice.
        self._ids: frozenset[UUID] = frozenset()

    async def ids(self, cluster: Cluster) -> frozenset[UUID]:
        """Their ids, as brokers tell them (see `Cluster.topics`). Raises UpstreamLost where none ever did."""
        try:
            found = await cluster.topics(self.names)
        except UpstreamLost:
            if not self._ids:
                raise
        else:
            self._ids |= {topic.topic_id for topic in found.values() if topic.topic_id is not None}
        return self._ids
