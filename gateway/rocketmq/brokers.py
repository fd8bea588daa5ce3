"""The brokers of the cluster, as name servers have them, and the gateway's listener for each address."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from gateway.net.listening import CannotListen, port_of
from gateway.rocketmq.addresses import BrokerAddress, BrokerPorts

UNSEEN_MAX_S = 600.0
"""A broker address that no answer of a name server has had for this time loses its port."""

Listen = Callable[[str, int], Awaitable[list[asyncio.Server]]]
"""Opens the listeners of a broker, by its name and id, at this port. Raises CannotListen."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Entry:
    broker: BrokerAddress
    port: int
    servers: list[asyncio.Server]
    seen_at_s: float


class BrokerTable:
    """The brokers with their ports. `on_moved` gets the addresses that a broker no longer has, `is_used`
    tells whether clients are connected to a broker's port.
    """

    def __init__(
        self,
        ports: BrokerPorts,
        listen: Listen,
        on_moved: Callable[[BrokerAddress], None],
        is_used: Callable[[str], bool],
    ) -> None:
        self._ports = ports
        self._listen = listen
        self._on_moved = on_moved
        self._is_used = is_used
        self._entries: dict[str, _Entry] = {}
        self._opening = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def brokers(self) -> list[BrokerAddress]:
        """Return all brokers."""
        return [entry.broker for entry in self._entries.values()]

    def broker(self, name: str) -> BrokerAddress | None:
        """Return the broker of this name and id, or None if it is gone."""
        entry = self._entries.get(name)
        return None if entry is None else entry.broker

    @property
    def is_listening(self) -> bool:
        """True if clients can connect to all ports, except those of brokers that refuse connections."""
        return all(server.is_serving() for entry in self._entries.values() for server in entry.servers)

    async def ports_of(self, brokers: Iterable[BrokerAddress]) -> Mapping[BrokerAddress, int]:
        """Return the port of each broker. Opens a new one for a broker that has none. Raises OSError."""
        found: dict[BrokerAddress, int] = {}
        for broker in sorted(brokers, key=lambda one: (one.name, one.id)):
            entry = self._entries.get(str(broker))
            if entry is None:
                async with self._opening:
                    entry = self._entries.get(str(broker)) or await self._open(broker)
            entry.seen_at_s = time.monotonic()
            if entry.broker.address != broker.address:
                before, entry.broker = entry.broker, broker
                log.info("a broker has another address", broker=str(broker), address=broker.address)
                self._on_moved(before)
            found[broker] = entry.port
        return found

    async def _open(self, broker: BrokerAddress) -> _Entry:
        error = CannotListen(f"no port is left for broker {broker}")
        for port in self._ports.candidates(str(broker)):
            try:
                servers = await self._listen(str(broker), port)
            except CannotListen as refused:
                error = refused
                continue
            entry = _Entry(broker, port_of(servers[0]), servers, time.monotonic())
            self._entries[str(broker)] = entry
            self._ports.keep(str(broker), entry.port)
            log.info("listening", broker=str(broker), address=broker.address, port=entry.port)
            return entry
        raise error

    async def refresh(self, brokers: list[BrokerAddress]) -> None:
        """Take over all brokers of the cluster. Raises OSError.

        A broker whose name is there with other addresses only has ended: its connections are closed. If its
        name is gone, too, the name server may have restarted, and the broker registers again.
        """
        await self.ports_of(brokers)
        addresses: dict[str, set[str]] = {}
        for broker in brokers:
            addresses.setdefault(broker.name, set()).add(broker.address)
        for name, entry in list(self._entries.items()):
            known = addresses.get(entry.broker.name)
            if known is not None and entry.broker.address not in known:
                self._on_moved(entry.broker)
            if time.monotonic() - entry.seen_at_s > UNSEEN_MAX_S and not self._is_used(name):
                log.info("a broker is gone", broker=name, port=entry.port)
                del self._entries[name]
                _close(entry)
                self._ports.forget(name)

    def stop_listening(self, name: str) -> bool:
        """Refuse connections to a broker, until `listen_again`. Return False if they are refused already."""
        entry = self._entries.get(name)
        if entry is None or not entry.servers:
            return False
        _close(entry)
        entry.servers = []
        return True

    async def listen_again(self, name: str) -> None:
        """Accept connections to a broker at the same port, unless it is gone. Raises CannotListen."""
        entry = self._entries.get(name)
        if entry is not None and not entry.servers:
            entry.servers = await self._listen(name, entry.port)

    def close(self) -> None:
        """Close all listeners."""
        for entry in self._entries.values():
            _close(entry)


def _close(entry: _Entry) -> None:
    for server in entry.servers:
        server.close()
