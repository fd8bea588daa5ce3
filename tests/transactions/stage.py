"""The stage of applications with transactions: a broker, the coordinator, two gateways, applications."""

import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from kafka_why.connections.address import Address
from tests.campaigns.restarting_process import RestartingProcess
from tests.campaigns.results import Result, StruckFault
from tests.campaigns.stage import Stage, one_broker
from tests.e2e.harness import wait_until
from tests.transactions.applications import Application
from tests.transactions.fleet import RECOVERY_TIMEOUT_S, Fleet

GATEWAYS = 2
STABLE_S = "seconds until no offset was pending"


class TransactionStage(Stage):
    """A stage whose load are applications. As a reference it has Kafka's own coordinator: the applications
    reach the brokers themselves, and there is no coordinator of ours and no gateway.
    """

    delay_s = 3.0
    """Anywhere in a transaction."""
    fleet: type[Fleet] = Fleet
    """The class of the fleets."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        applications: list[Application],
        *,
        step: str = "steady",
        is_reference: bool = False,
    ) -> None:
        super().__init__(folder, seed, step=step, brokers=one_broker(folder, self.settings))
        self.is_reference = is_reference
        self.gateways: dict[Address, RestartingProcess] = {}
        self.fleets: list[Fleet] = []
        self._applications = applications

    def start_load(self, stack: ExitStack) -> None:
        if not self.is_reference:
            self.start_coordinators(stack)
            for number in range(GATEWAYS):
                address = self.gateway_address()
                self.gateways[address] = self.start_gateway(stack, f"gateway-{number}", address)
        for application in self._applications:
            folder = self.folder / application.name
            fleet = self.fleet(application, self.servers, self._reach_of, folder)
            stack.callback(fleet.stop)
            self.fleets.append(fleet.start())
        self.wait_for_progress()

    @property
    def seen(self) -> list[int]:
        """Records of each application's output that were committed so far."""
        return [fleet.seen for fleet in self.fleets]

    @property
    def load_so_far(self) -> str:
        return f"after {self.seen} records"

    def instances(self) -> list[RestartingProcess]:
        """All instances of all applications."""
        return [instance for fleet in self.fleets for instance in fleet.instances]

    def before_fault(self, struck: StruckFault, random: Random) -> None:
        """Choose the gateway which the fault hits if it hits one."""
        if self.gateways:
            self.gateway = random.choice([*self.gateways.values()])

    def wait_for_progress(self) -> float:
        """Wait until each application commits more of its output."""
        before, began_s = self.seen, time.monotonic()

        def is_more() -> bool:
            for fleet in self.fleets:
                fleet.tend()
            return all(now > then for now, then in zip(self.seen, before, strict=True))

        wait_until(is_more, "more output of each application", RECOVERY_TIMEOUT_S)
        return time.monotonic() - began_s

    def describe(self) -> str:
        return "; ".join([super().describe(), *(fleet.describe() for fleet in self.fleets)])

    def judge(self, result: Result) -> None:
        """End the input, wait until all is read and committed, and judge."""
        for fleet in self.fleets:
            fleet.end_input()
            result.numbers[fleet.application.name] = fleet.sent
        for fleet in self.fleets:
            name = fleet.application.name
            offsets, stable_s = fleet.drain()
            result.numbers[STABLE_S] = max(result.numbers.get(STABLE_S, 0.0), stable_s)
            result.wrongs[name] = {}
            for verdict in fleet.judge(offsets):
                result.count(name, verdict)

    def _reach_of(self, number: int) -> str:
        """Return what an instance takes for bootstrap servers: all gateways, another one first in turn."""
        if self.is_reference:
            return self.servers
        place, addresses = number % GATEWAYS, [*self.gateways]
        return ",".join(map(str, [*addresses[place:], *addresses[:place]]))
