"""The addresses of brokers: the real ones, the gateway's port for each, and those that clients get."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kafka_why.connections.address import MAX_PORT, Address
from kafka_why.remoting.answers import BrokerData

_STEP = 3
"""A client with sendMessageWithVIPChannel connects to the port 2 below a broker's."""
_PORTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker: its name, its id (0 is the master of its name, others are slaves), and its real address."""

    name: str
    id: int
    address: str

    def __str__(self) -> str:
        return f"{self.name}/{self.id}"


def broker_addresses(data: BrokerData) -> list[BrokerAddress]:
    """Return the addresses of a broker's name in a route."""
    return [BrokerAddress(data.broker_name, number, address) for number, address in data.broker_addrs.items()]


@dataclass(frozen=True, slots=True)
class AddressTemplate:
    """A template of the addresses that clients get: `HOST:PORT` with `{broker}` for the broker's name, `{id}`
    for its id, and `{port}` for the gateway's port.
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template. Raises ValueError if it is not HOST:PORT, or if brokers would share one."""
        template = cls(text.strip())
        brokers = [BrokerAddress("a", 0, ""), BrokerAddress("a", 1, ""), BrokerAddress("b", 0, "")]
        try:
            found = {template.address(broker, port) for port, broker in enumerate(brokers, 1)}
            if len(found) < len(brokers):
                raise ValueError("several brokers would have the same address")
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not HOST:PORT with {{port}}, or with {{broker}} and {{id}}: {error}"
            ) from error
        return template

    def address(self, broker: BrokerAddress, port: int) -> Address:
        """Return the address of a broker at this port of the gateway. Raises ValueError."""
        text = self.text.replace("{broker}", broker.name).replace("{id}", str(broker.id))
        return Address.parse(text.replace("{port}", str(port)))


def parse_broker_port(text: str) -> tuple[str, int]:
    """Parse `NAME/ID=PORT`. Raises ValueError."""
    broker, _, port = text.partition("=")
    name, _, number = broker.strip().rpartition("/")
    if not name or not number.isdecimal() or not port.strip().isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} is not NAME/ID=PORT, such as broker-a/0=9880")
    return broker.strip(), int(port)


class BrokerPorts:
    """The gateway's port for each broker, by name and id. They are kept in `file`, because a client keeps an
    address for as long as its route has it. `pinned` ports are never others.

    New ports are `first_port`, and those above it in steps of 3. If that is 0, the system chooses them.
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
            last = min(self._first_port + _PORTS_MAX * _STEP, MAX_PORT)
            taken = set(self._ports.values())
            yield from (port for port in range(self._first_port, last, _STEP) if port not in taken)

    def keep(self, broker: str, port: int) -> None:
        """Store the port of a broker. Raises OSError."""
        if self._ports.get(broker) != port:
            self._ports[broker] = port
            self._write()

    def forget(self, broker: str) -> None:
        """Forget the port of a broker that is gone, unless it is pinned. Raises OSError."""
        if broker not in self._pinned and self._ports.pop(broker, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._file is not None:
            written = self._file.with_name(f"{self._file.name}.new")
            written.write_text(json.dumps(self._ports, indent=1, sort_keys=True))
            written.replace(self._file)


def _read(file: Path) -> dict[str, int]:
    """Read a file of ports. Raises OSError, and ValueError if its content is something else."""
    ports = json.loads(file.read_text())
    if not isinstance(ports, dict) or not all(
        isinstance(one, int) and 0 < one <= MAX_PORT for one in ports.values()
    ):
        raise ValueError(f"{file} has no ports of brokers")
    return ports
