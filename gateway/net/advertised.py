"""The addresses that clients get for brokers (docs/decisions/0024).

A template is `HOST:PORT` with `{node}` for the broker's node id and `{port}` for the port of the broker's
listener. Without templates clients get the address that they connected to. Each gateway has one template.

Brokers are assigned to gateways by node id, so that all gateways give the same address for a broker, and
clients are spread over the gateways. While a gateway does not accept connections, its brokers are assigned to
the next gateway that does.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import structlog

from gateway.net.listener import accepts_connections
from kafka_why.connections.address import Address

CHECK_INTERVAL_S = 1.0
_CHECK_TIMEOUT_S = 1.0
_NODE, _PORT = "{node}", "{port}"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Template:
    """A template of the addresses of one gateway's listeners."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template. Raises ValueError if it is not HOST:PORT, or gives all brokers the same
        address.
        """
        template = cls(text.strip())
        try:
            if template.address(node_id=1, port=1) == template.address(node_id=2, port=2):
                raise ValueError("all brokers would have the same address")
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not HOST:PORT with {_NODE} or {_PORT} for each broker: {error}"
            ) from error
        return template

    def address(self, node_id: int, port: int) -> Address:
        """Return the address for a broker whose listener has this port. Raises ValueError for a port that is
        too high.
        """
        return Address.parse(self.text.replace(_NODE, str(node_id)).replace(_PORT, str(port)))

    def node_id(self, server_name: str) -> int | None:
        """Return the node id of the broker whose host name in this template is `server_name`, or None if no
        broker can have this name.
        """
        host = self.text.rpartition(":")[0]
        if _NODE not in host:
            return None
        # The first {node} captures the number. Each further {node} has to match the same number.
        pattern = re.escape(host).replace(re.escape(_NODE), r"([0-9]+)", 1).replace(re.escape(_NODE), r"\1")
        match = re.fullmatch(pattern, server_name, re.IGNORECASE)
        return None if match is None else int(match[1])


def parse_templates(text: str) -> tuple[Template, ...]:
    """Parse `TEMPLATE,...`. Raises ValueError."""
    return tuple(Template.parse(item) for item in text.split(","))


class Advertised:
    """The advertised addresses of brokers. `ports` returns the port of each broker's open listener, by node
    id. `validate` has accepted these ports.
    """

    def __init__(self, templates: Sequence[Template], ports: Callable[[], dict[int, int]]) -> None:
        self._templates = templates
        self._ports = ports
        self._down: frozenset[Template] = frozenset()
        """The templates of the gateways that accept no connections."""

    def validate(self, node_id: int, port: int) -> None:
        """Raise ValueError if a template gives no address for a broker whose listener has this port."""
        for template in self._templates:
            template.address(node_id, port)

    def address(self, node_id: int, port: int) -> Address | None:
        """Return the address for a broker whose listener has this port, or None if there are no templates."""
        count = len(self._templates)
        if not count:
            return None
        for offset in range(count):
            template = self._templates[(node_id + offset) % count]
            if template not in self._down:
                return template.address(node_id, port)
        # No gateway accepts connections from this one, perhaps because of the network between gateways.
        return self._templates[node_id % count].address(node_id, port)

    def node_id(self, server_name: str | None) -> int | None:
        """Return the broker whose name the client sent in its TLS handshake (SNI).

        Return None if the client sent no name, or a name that no template gives to a broker.
        """
        node_ids = (template.node_id(server_name) for template in self._templates if server_name)
        return next((node_id for node_id in node_ids if node_id is not None), None)

    async def watch(self) -> None:
        """Check periodically which gateways accept connections, until cancelled. If there is only one
        gateway, return.
        """
        while len(self._templates) > 1:
            await self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def check(self) -> None:
        """Connect to a listener of each gateway, and store which of them do not accept connections."""
        ports = self._ports()
        if not ports:
            return
        # Every gateway has a listener for each broker, so one broker is enough.
        node_id = min(ports)
        addresses = [str(template.address(node_id, ports[node_id])) for template in self._templates]
        checks = (accepts_connections(address, _CHECK_TIMEOUT_S) for address in addresses)
        are_up = await asyncio.gather(*checks)
        down = frozenset(t for t, is_up in zip(self._templates, are_up, strict=True) if not is_up)
        if down != self._down:
            log.info("gateways that accept no connections", addresses=_texts(down), before=_texts(self._down))
        self._down = down


def _texts(templates: Iterable[Template]) -> list[str]:
    return sorted(template.text for template in templates)
