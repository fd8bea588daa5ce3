"""Runs the load on a thread of its own. `PROTOCOLS` has each protocol there is."""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from random import Random

from clients.coordinator_client import CoordinatorClient
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from tests.faults.campaign.load.classic import ClassicMember
from tests.faults.campaign.load.consumer import ConsumerMember
from tests.faults.campaign.load.meter import Member, Meter
from tests.faults.campaign.load.transactional import TransactionalMember

MEMBERS = 3
"""Of each group."""
REQUEST_TIMEOUT_MS = 30_000
PROTOCOLS: dict[str, tuple[int, type[Member]]] = {
    "classic": (42, ClassicMember),
    "transactional": (6, TransactionalMember),
    "consumer": (6, ConsumerMember),
}
"""By name: the number of groups, and their members. Another protocol joins by an entry here."""


class Load:
    """All groups, from `start` to `stop`."""

    def __init__(self, seed: int, groups: Mapping[str, int]) -> None:
        """`groups` are their numbers by protocol."""
        self.meter = Meter()
        self.groups = {
            f"{protocol}-{number}": protocol for protocol, all_ in groups.items() for number in range(all_)
        }
        """The protocol of each group."""
        self.failure: Exception | None = None
        self._seed = seed
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._stack = ExitStack()
        self._members: asyncio.Task[None] | None = None

    def start(self, servers: str, layout: TopicLayout, gateway: Address) -> None:
        self._client = CoordinatorClient(
            ClientConfig(servers), layout, client_id="campaign", request_timeout_ms=REQUEST_TIMEOUT_MS
        )
        self._stack.callback(self._client.close)
        self._gateway = gateway
        self._loop = asyncio.new_event_loop()
        self._thread.start()

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
        async with asyncio.TaskGroup() as tasks:
            for group, protocol in self.groups.items():
                _, kind = PROTOCOLS[protocol]
                for number in range(MEMBERS):
                    random = Random(f"{self._seed}-{group}-{number}")
                    member = kind(group, number, self._gateway, self._client, self.meter, random)
                    tasks.create_task(member.live())
