"""One request of a client, and whom its handler may ask."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from clients.coordinator_client import Header
from gateway.coordinator.backend import Backend
from gateway.coordinator.fresh_groups import FreshGroups
from gateway.security.authentication import Session
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.upstream.internal_topics import InternalTopics
from gateway.wire.framing import RequestHeader
from records.partitioner import partition_of


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers work with. `listener_port` opens the listener of a broker node if there is none yet."""

    backend: Backend
    cluster: Cluster
    groups: FreshGroups
    listener_port: Callable[[int], Awaitable[int]]
    internal_topics: InternalTopics


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A request's surroundings. `host` is the gateway's name as this client is to know it, `node_id` the
    broker whose listener it came to, None for the first one.
    """

    services: Services
    header: RequestHeader
    client_host: str
    host: str
    node_id: int | None
    session: Session

    @property
    def version(self) -> int:
        """The api version the client chose."""
        return self.header.api_version

    def to_group(self, group_id: str) -> Header:
        """What a request for the coordinator begins with."""
        return self.services.backend.header(
            group_id, self.version, self.header.client_id or "", self.client_host
        )

    async def listener(self, node_id: int) -> Address:
        """Where clients reach this broker through the gateway."""
        return Address(self.host, await self.services.listener_port(node_id))

    def coordinator_of(self, group_id: str) -> int | None:
        """The broker node whose listener this group is found at, None where no broker is known.

        Any listener would do. But clients that list groups ask every broker and put the answers together, so
        each group has to be some broker's.
        """
        live = self.services.cluster.live
        return live[partition_of(group_id, len(live))] if live else None
