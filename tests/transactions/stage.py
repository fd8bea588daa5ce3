"""What the faults happen to: a broker, the coordinator, two gateways, and applications."""

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Self

from connections.address import Address
from tests.faults.campaign.cluster import CampaignCluster
from tests.faults.campaign.keeper import Keeper
from tests.harness.broker_cluster import BrokerCluster
from tests.harness.ports import gateway_port
from tests.transactions.applications import Application
from tests.transactions.fleet import RECOVERY_TIMEOUT_S, Fleet, Stalled

GATEWAYS = 2
_LOOK_S = 0.2
_ONE_BROKER = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class Stage(CampaignCluster):
    """A world whose load are applications. As a reference it has Kafka's own coordinator: the applications
    reach the brokers themselves, and there is no coordinator of ours and no gateway.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        applications: list[Application],
        *,
        step: str = "steady",
        is_reference: bool = False,
        brokers: int = 1,
    ) -> None:
        """`step` is one of `planted.STEPS`."""
        super().__init__(folder, seed, step=step)
        self.brokers = BrokerCluster(
            folder / "brokers",
            overrides=_ONE_BROKER if brokers == 1 else {},
            nodes=range(1, brokers + 1),
        )
        self.is_reference = is_reference
        self.gateways: list[Keeper] = []
        self.fleets: list[Fleet] = []
        self._applications = applications
        self._addresses: list[Address] = []

    def start(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.brokers)
            if not self.is_reference:
                self.start_coordinators(stack)
                self._start_gateways(stack)
            for application in self._applications:
                folder = self.folder / application.name
                fleet = Fleet(application, self.servers, self._reach_of, folder)
                stack.callback(fleet.stop)
                self.fleets.append(fleet.start())
            self.wait_for_progress()
            self._stack = stack.pop_all()
        return self

    @property
    def seen(self) -> list[int]:
        """Records of each application's output that were committed so far."""
        return [fleet.seen for fleet in self.fleets]

    @property
    def gateway_address(self) -> Address:
        """Where the first gateway listens."""
        return self._addresses[0]

    def instances(self) -> list[Keeper]:
        """All instances of all applications."""
        return [instance for fleet in self.fleets for instance in fleet.instances]

    def choose(self, random: Random) -> None:
        """Choose the gateway which the next fault hits if it hits one."""
        if self.gateways:
            self.gateway = random.choice(self.gateways)

    def wait_for_progress(self, timeout_s: float = RECOVERY_TIMEOUT_S) -> None:
        """Wait until each application commits more of its output. Raises Stalled."""
        before = self.seen
        give_up_s = time.monotonic() + timeout_s
        while still := [fleet for fleet, then in zip(self.fleets, before, strict=True) if fleet.seen <= then]:
            for fleet in self.fleets:
                fleet.tend()
            if time.monotonic() > give_up_s:
                names = ", ".join(fleet.application.name for fleet in still)
                raise Stalled(f"no more output of {names} within {timeout_s:.0f} s: {self.describe()}")
            time.sleep(_LOOK_S)

    def describe(self) -> str:
        """How far applications are, and how their instances ended last."""
        status = [f"status {self.status()}"] if self.machines else []
        return "; ".join([*status, *(fleet.describe() for fleet in self.fleets)])

    def _start_gateways(self, stack: ExitStack) -> None:
        above = 1 + max(self.brokers.nodes)
        ports: list[int] = []
        while len(ports) < GATEWAYS:
            port = gateway_port(above)
            if all(abs(port - other) > above for other in ports):
                ports.append(port)
        for number, port in enumerate(ports):
            address = Address("127.0.0.1", port)
            self.gateways.append(self.start_gateway(stack, f"gateway-{number}", address))
            self._addresses.append(address)

    def _reach_of(self, number: int) -> str:
        """What an instance takes for bootstrap servers: all gateways, another one first in turn."""
        if self.is_reference:
            return self.servers
        place = number % GATEWAYS
        return ",".join(map(str, [*self._addresses[place:], *self._addresses[:place]]))
