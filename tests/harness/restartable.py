"""A coordinator in the test's process that can be stopped and started again, and clients that stay."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.topics import prepare_topics
from tests.e2e.harness import QUICK_SPARK, START_TIMEOUT_S, new_layout
from tests.harness.form import formed

INITIAL_DELAY_MS = 500
SETTINGS = {
    "group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS),
    "group.min.session.timeout.ms": "100",
    "offsets.retention.check.interval.ms": str(2**31 - 1),  # groups without members stay
}


@dataclass
class Service:
    """A coordinator that is stopped and started, and two clients that stay."""

    options: Options
    coordinator: Coordinator
    one: CoordinatorClient
    other: CoordinatorClient

    @property
    def client_config(self) -> ClientConfig:
        return self.options.client_config

    @property
    def layout(self) -> TopicLayout:
        return self.options.layout

    def start(self, **settings: str) -> None:
        self.options = replace(self.options, settings={**self.options.settings, **settings})
        self.coordinator = Coordinator(self.options)
        self.coordinator.start()
        status = self.coordinator.status
        assert status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), status.current


@contextmanager
def restartable(broker: EmbeddedBroker, folder: Path, spark: Mapping[str, str]) -> Iterator[Service]:
    """Run a coordinator with these settings of Spark until the block ends. Yield it with two clients."""
    client_config, layout = broker.client_config, new_layout()
    options = formed(
        Options(
            client_config,
            folder,
            layout,
            settings=SETTINGS,
            ui_port=None,
            tick_interval_ms=50,
            first_request_wait_s=1.0,
            spark={**QUICK_SPARK, **spark},
        )
    )
    prepare_topics(client_config, layout)
    with (
        patient_client(client_config, layout, "one", 3) as one,
        patient_client(client_config, layout, "other", 7) as other,
    ):
        service = Service(options, Coordinator(options), one, other)
        service.start()
        yield service
        service.coordinator.stop()


def patient_client(cluster: ClientConfig, layout: TopicLayout, name: str, reply: int) -> CoordinatorClient:
    """Return a client that waits for as long as a coordinator may need to start."""
    ms = int(START_TIMEOUT_S * 1000)
    return CoordinatorClient(cluster, layout, client_id=name, reply_partition=reply, request_timeout_ms=ms)
