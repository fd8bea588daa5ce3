"""The brokers of the cluster, as name servers list them, and the gateway's listeners and port for each
broker.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from gateway.net.listener import CannotListen, port_of
from kafka_why.connections.address import MAX_PORT, Address
from kafka_why.remoting.answers import BrokerData

# The addresses of brokers: the real addresses, the gateway's ports, and the addresses that clients get.


_PORT_STEP = 3
"""The step between the ports of brokers. A client with sendMessageWithVIPChannel connects to the port 2
below.
"""
_PORTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker: its name, its id (0 for the master of the name, else a slave's), and its real address."""

    name: str
    id: int
    address: str

    def __str__(self) -> str:
        return f"{self.name}/{self.id}"


def broker_addresses(data: BrokerData) -> list[BrokerAddress]:
    """Return the brokers that a route has under one broker name: a master and its slaves."""
    return [BrokerAddress(data.broker_name, number, address) for number, address in data.broker_addrs.items()]


@dataclass(frozen=True, slots=True)
class AddressTemplate:
    """A template of the addresses that clients get.

    It is `HOST:PORT` with `{broker}` for the broker's name, `{id}` for its id, and `{port}` for the gateway's
    port. Without these fields it is the address of a single broker.
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template. Raises ValueError if it is not HOST:PORT."""
        template = cls(text.strip())
        try:
            example = BrokerAddress(name="a", id=0, address="")
            Address.parse(template._fill_in(example, port=1))
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not HOST:PORT with {{port}}, {{broker}} or {{id}}: {error}"
            ) from error
        return template

    def addresses(
        self, brokers: Iterable[BrokerAddress], ports: Mapping[BrokerAddress, int]
    ) -> dict[BrokerAddress, Address]:
        """Return the addresses of `brokers`.

        `ports` are the gateway's ports for all brokers, in the order in which the gateway found them. Raises
        ValueError if a broker has no address, or the address of an earlier broker.
        """
        owners: dict[str, BrokerAddress] = {}  # the first broker with each address
        for broker, port in ports.items():
            owners.setdefault(self._fill_in(broker, port), broker)
        addresses = {}
        for broker in brokers:
            text = self._fill_in(broker, ports[broker])
            if owners[text] != broker:
                raise ValueError(
                    f"the brokers {owners[text]} and {broker} would both have the address {text}: "
                    "use {port}, or {broker} and {id}, in the advertised listeners"
                )
            addresses[broker] = Address.parse(text)
        return addresses

    def _fill_in(self, broker: BrokerAddress, port: int) -> str:
        text = self.text.replace("{broker}", broker.name).replace("{id}", str(broker.id))
        return text.replace("{port}", str(port))


def parse_broker_port(text: str) -> tuple[str, int]:
    """Parse `NAME/ID=PORT`. Raises ValueError."""
    broker, _, port = text.partition("=")
    name, _, number = broker.strip().rpartition("/")
    if not name or not number.isdecimal() or not port.strip().isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} is not NAME/ID=PORT, such as broker-a/0=9880")
    return broker.strip(), int(port)


class BrokerPorts:
    """The gateway's port for each broker, by name and id.

    The ports are stored in `file`, because clients keep using the addresses in their routes after a restart.
    `pinned` ports never change. A new port is the first free one from `first_port` in steps of `_PORT_STEP`.
    If `first_port` is 0, the system chooses new ports.
    """

    def __init__(self, first_port: int, file: Path | None = None, pinned: Mapping[str, int] | None = None):
        self._first_port = first_port
        self._file = file
        self._pinned = dict(pinned or {})
        self._ports: dict[str, int] = {}
        if file is not None:
            with suppress(FileNotFoundError):
                self._ports = _read(file)
        self._ports |= self._pinned

    def candidates(self, broker: str) -> Iterator[int]:
        """Yield the ports that this broker may have, in the order in which to try them."""
        if broker in self._ports:
            yield self._ports[broker]
        if broker in self._pinned:
            return
        if not self._first_port:
            yield 0
        else:
            end = min(self._first_port + _PORTS_MAX * _PORT_STEP, MAX_PORT)
            assigned = set(self._ports.values())
            yield from (port for port in range(self._first_port, end, _PORT_STEP) if port not in assigned)

    def store(self, broker: str, port: int) -> None:
        """Store the port of a broker. Raises OSError."""
        if self._ports.get(broker) != port:
            self._ports[broker] = port
            self._write()

    def forget(self, broker: str) -> None:
        """Forget the port of a broker that is gone, unless it is pinned. Raises OSError."""
        if broker not in self._pinned and self._ports.pop(broker, None) is not None:
            self._write()

    def _write(self) -> None:
        """Write the ports to the file, if one is configured. The file is never incomplete."""
        if self._file is not None:
            new_file = self._file.with_name(f"{self._file.name}.new")
            new_file.write_text(json.dumps(self._ports, indent=1, sort_keys=True))
            new_file.replace(self._file)


def _read(file: Path) -> dict[str, int]:
    """Read a file of ports. Raises OSError, and ValueError if its content is something else."""
    ports = json.loads(file.read_text())
    if not isinstance(ports, dict) or not all(
        isinstance(port, int) and 0 < port <= MAX_PORT for port in ports.values()
    ):
        raise ValueError(f"{file} has no ports of brokers")
    return ports


UNSEEN_MAX_S = 600.0
"""A broker address that no answer of a name server has had for this time loses its port."""

Listen = Callable[[str, int], Awaitable[list[asyncio.Server]]]
"""Opens the listeners of a broker, by its name and id, at this port. Raises CannotListen."""

log = structlog.get_logger()


@dataclass(slots=True)
class _BrokerEntry:
    """A broker in the table. `servers` is empty while the gateway refuses connections to the broker."""

    broker: BrokerAddress
    port: int
    servers: list[asyncio.Server]
    seen_at_s: float  # when a name server listed it last, by `time.monotonic`


class BrokerTable:
    """The brokers with their ports.

    `on_address_left` is called with the former `BrokerAddress` of a broker that is no longer there. `is_used`
    gets a broker's name and id, and returns True if clients are connected to its port.
    """

    def __init__(
        self,
        ports: BrokerPorts,
        listen: Listen,
        on_address_left: Callable[[BrokerAddress], None],
        is_used: Callable[[str], bool],
    ) -> None:
        self._ports = ports
        self._listen = listen
        self._on_address_left = on_address_left
        self._is_used = is_used
        self._entries: dict[str, _BrokerEntry] = {}  # by the broker's name and id, NAME/ID
        self._opening = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def brokers(self) -> list[BrokerAddress]:
        """Return all brokers."""
        return [entry.broker for entry in self._entries.values()]

    def ports(self) -> dict[BrokerAddress, int]:
        """Return the ports of all brokers."""
        return {entry.broker: entry.port for entry in self._entries.values()}

    def broker(self, name: str) -> BrokerAddress | None:
        """Return the broker whose `str` is `name`, or None if it is gone."""
        entry = self._entries.get(name)
        return None if entry is None else entry.broker

    @property
    def is_listening(self) -> bool:
        """True if clients can connect to all ports, except those of brokers that refuse connections."""
        return all(server.is_serving() for entry in self._entries.values() for server in entry.servers)

    async def open_ports(self, brokers: Iterable[BrokerAddress]) -> Mapping[BrokerAddress, int]:
        """Return the port of each broker, and open a new port for a broker that has none. Raises OSError."""
        ports: dict[BrokerAddress, int] = {}
        for broker in sorted(brokers, key=lambda broker: (broker.name, broker.id)):
            entry = self._entries.get(str(broker))
            if entry is None:
                async with self._opening:
                    entry = self._entries.get(str(broker)) or await self._open(broker)
            entry.seen_at_s = time.monotonic()
            if entry.broker.address != broker.address:
                former_broker, entry.broker = entry.broker, broker
                log.info("a broker has another address", broker=str(broker), address=broker.address)
                self._on_address_left(former_broker)
            ports[broker] = entry.port
        return ports

    async def _open(self, broker: BrokerAddress) -> _BrokerEntry:
        """Open a port for a broker, the first of its candidates that is free. Raises OSError."""
        last_error = CannotListen(f"no port is left for broker {broker}")
        for port in self._ports.candidates(str(broker)):
            try:
                servers = await self._listen(str(broker), port)
            except CannotListen as error:
                last_error = error
                continue
            entry = _BrokerEntry(broker, port_of(servers[0]), servers, time.monotonic())
            self._entries[str(broker)] = entry
            self._ports.store(str(broker), entry.port)
            log.info("listening", broker=str(broker), address=broker.address, port=entry.port)
            return entry
        raise last_error

    async def refresh(self, brokers: list[BrokerAddress]) -> None:
        """Update the table with all brokers of the cluster. Raises OSError.

        If `brokers` has a known broker's name, but not its address, the broker has ended, and its connections
        are closed. If the name is gone, too, the connections are kept: the name server may have restarted,
        and the broker then registers again.
        """
        await self.open_ports(brokers)
        addresses_by_name: dict[str, set[str]] = {}
        for broker in brokers:
            addresses_by_name.setdefault(broker.name, set()).add(broker.address)
        for name, entry in list(self._entries.items()):
            addresses = addresses_by_name.get(entry.broker.name)
            if addresses is not None and entry.broker.address not in addresses:
                self._on_address_left(entry.broker)
            if time.monotonic() - entry.seen_at_s > UNSEEN_MAX_S and not self._is_used(name):
                log.info("a broker is gone", broker=name, port=entry.port)
                del self._entries[name]
                _close(entry)
                self._ports.forget(name)

    def stop_listening(self, name: str) -> bool:
        """Refuse connections to a broker until `listen_again`. Return False if they are already refused."""
        entry = self._entries.get(name)
        if entry is None or not entry.servers:
            return False
        _close(entry)
        entry.servers = []
        return True

    async def listen_again(self, name: str) -> None:
        """Accept connections at a broker's port again, unless the broker is gone. Raises CannotListen."""
        entry = self._entries.get(name)
        if entry is not None and not entry.servers:
            entry.servers = await self._listen(name, entry.port)

    def close(self) -> None:
        """Close all listeners."""
        for entry in self._entries.values():
            _close(entry)


def _close(entry: _BrokerEntry) -> None:
    for server in entry.servers:
        server.close()
