"""Runs the load on a thread of its own. `PROTOCOLS` has each protocol there is."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Protocol, Self

from clients.coordinator_client import CoordinatorClient
from connections.address import Address
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from tests.faults.campaign.load.classic import ClassicMember
from tests.faults.campaign.load.consumer import ConsumerMember
from tests.faults.campaign.load.gateway import GatewayTransport
from tests.faults.campaign.load.meter import Meter
from tests.faults.campaign.load.rocketmq import RocketMqMember
from tests.faults.campaign.load.topics import TopicsTransport
from tests.faults.campaign.load.transactional import TransactionalMember

MEMBERS = 3
"""Of each group."""
REQUEST_TIMEOUT_MS = 30_000
TRANSACTIONAL = "transactional, through the gateway"
CONSUMER = "consumer, through the gateway"


class Member(Protocol):
    async def live(self) -> None: ...


@dataclass(frozen=True)
class Reach:
    """How the load reaches the coordinator."""

    gateway: Address
    client: CoordinatorClient
    meter: Meter


Make = Callable[[str, str, int, Reach, Random], Member]


def _through_gateway(protocol: str, group: str, number: int, reach: Reach, random: Random) -> Member:
    return ClassicMember(protocol, group, number, GatewayTransport(reach.gateway), reach.meter, random)


def _on_topics(protocol: str, group: str, number: int, reach: Reach, random: Random) -> Member:
    return ClassicMember(protocol, group, number, TopicsTransport(reach.client), reach.meter, random)


def _transactional(protocol: str, group: str, number: int, reach: Reach, random: Random) -> Member:
    transport = GatewayTransport(reach.gateway)
    return TransactionalMember(protocol, group, number, transport, reach.meter, random, gateway=reach.gateway)


def _consumer(protocol: str, group: str, number: int, reach: Reach, random: Random) -> Member:
    return ConsumerMember(protocol, group, number, GatewayTransport(reach.gateway), reach.meter, random)


def _rocketmq(protocol: str, group: str, number: int, reach: Reach, random: Random) -> Member:
    return RocketMqMember(protocol, group, number, reach.client, reach.meter, random)


PROTOCOLS: dict[str, tuple[int, Make]] = {
    "classic, through the gateway": (30, _through_gateway),
    "classic, on the topics": (12, _on_topics),
    TRANSACTIONAL: (6, _transactional),
    CONSUMER: (6, _consumer),
    "rocketmq": (8, _rocketmq),
}
"""By name: the number of groups, and what makes a member. Another protocol joins by an entry here."""


class Load:
    """All groups, from `start` to `stop`."""

    def __init__(
        self,
        servers: str,
        layout: TopicLayout,
        gateway: Address,
        seed: int,
        *,
        share: float = 1.0,
        groups: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`share` is the share of the groups that take part, `groups` their number in protocols where it is
        another.
        """
        self.meter = Meter()
        self.groups = {
            protocol: [
                f"{protocol.replace(',', '')}-{n}".replace(" ", "-")
                for n in range(groups.get(protocol, max(1, int(usual * share))))
            ]
            for protocol, (usual, _) in PROTOCOLS.items()
        }
        self._servers, self._layout, self._gateway, self._seed = servers, layout, gateway, seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._stack = ExitStack()
        self._members: asyncio.Task[None] | None = None
        self.failure: Exception | None = None

    @property
    def all_groups(self) -> list[str]:
        return [group for groups in self.groups.values() for group in groups]

    def start(self) -> Self:
        client = CoordinatorClient(
            ClientConfig(self._servers),
            self._layout,
            client_id="campaign",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self._stack.callback(client.close)
        self.client = client
        self._thread.start()
        return self

    def stop(self) -> None:
        """Cancel the members. What they sent last may be unanswered."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(30)
        self._stack.close()

    def _cancel(self) -> None:
        if self._members is not None:
            self._members.cancel()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - it is raised by whoever waits for answers
            self.failure = error
        finally:
            self._loop.run_until_complete(asyncio.sleep(0))  # connections that are closed end now
            self._loop.close()

    async def _live(self) -> None:
        self._members = asyncio.current_task()
        reach = Reach(self._gateway, self.client, self.meter)
        async with asyncio.TaskGroup() as tasks:
            for protocol, groups in self.groups.items():
                make: Any = PROTOCOLS[protocol][1]
                for group in groups:
                    for number in range(MEMBERS):
                        random = Random(f"{self._seed}-{group}-{number}")
                        tasks.create_task(make(protocol, group, number, reach, random).live())
