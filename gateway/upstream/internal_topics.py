"""The coordinator's own topics. The gateway shows them to clients as internal topics, like Kafka's
__consumer_offsets. Clients may not change them, because a record on the requests topic is a request in the
name of any member.
"""

from collections.abc import Iterable
from uuid import UUID

from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost


class InternalTopics:
    """The coordinator's own topics `own`. `names` are those that clients see as internal: all, or none with
    `exposed`. Patterns match none of `own` in either case, as for the topic watcher.
    """

    def __init__(self, own: Iterable[str] = (), *, exposed: bool = False) -> None:
        self.own = frozenset(own)
        self.names = frozenset() if exposed else self.own
        # All ids that the topics have ever had. Kafka never reuses an id.
        self._ids: frozenset[UUID] = frozenset()

    async def ids(self, cluster: Cluster) -> frozenset[UUID]:
        """The topics' ids from metadata (see `Cluster.topics`). Raises UpstreamLost if no broker ever
        answered.
        """
        try:
            found = await cluster.topics(self.names)
        except UpstreamLost:
            if not self._ids:
                raise
        else:
            self._ids |= {topic.topic_id for topic in found.values() if topic.topic_id is not None}
        return self._ids
