"""The two sides of a comparison, and how both are started with the same settings."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kafka import TopicPartition

from embedded.broker import HOST, EmbeddedBroker
from gateway.service import GatewayOptions, serving
from gateway.upstream.connections import Address
from gateway.wire.limits import Limits
from records import kafka_clients
from records.layout import TopicLayout
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase

START_TIMEOUT_S = 120.0
INITIAL_DELAY = "group.initial.rebalance.delay.ms"

# The measurements include slow responses, so the gateway must not time out on them.
_PATIENT = Limits(member_held_s=30.0)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Sides(Generic[T]):
    """A value of our side, and the same value of Kafka's side."""

    ours: T
    kafkas: T

    def map(self, function: Callable[[T], U]) -> "Sides[U]":
        """Apply the function to both."""
        return Sides(function(self.ours), function(self.kafkas))

    def __iter__(self) -> Iterator[T]:
        yield self.ours
        yield self.kafkas


@contextmanager
def running(folder: Path, initial_delay_ms: int) -> Iterator[Sides[Address]]:
    """Yield the address of our coordinator's gateway, and that of the broker behind both.

    Everything of ours except Spark runs in this process, as in `group-coordinator run`, so load must come
    from another process. Raises TimeoutError if our coordinator does not start.
    """
    settings = {INITIAL_DELAY: str(initial_delay_ms)}
    layout = TopicLayout.named("coordinator")
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker", overrides=settings))
        servers = broker.bootstrap_servers
        wake(servers)
        options = Options(servers, folder / "coordinator", layout, settings)
        coordinator = stack.enter_context(Coordinator(options))
        if not coordinator.status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S):
            raise TimeoutError(f"the coordinator is not ready: {coordinator.status.current}")
        gateway_options = GatewayOptions(servers, layout, Address(HOST, 0), limits=_PATIENT)
        gateway = stack.enter_context(serving(gateway_options))
        yield Sides(ours=gateway, kafkas=Address.parse(servers))


def wake(servers: str) -> None:
    """Make the broker start its coordinator, which it does when the first client looks for one."""
    with closing(kafka_clients.group_consumer(servers, "wake")) as consumer:
        consumer.committed(TopicPartition("any", 0))
