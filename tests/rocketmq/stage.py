"""The stage: RocketMQ, and before it two gateways and their coordinator, or nothing."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Self

from embedded.rocketmq import EmbeddedRocketMq
from kafka_why.connections.address import Address
from kafka_why.contract.service import ServicePhase
from tests.campaigns.restarting_process import RestartingProcess
from tests.campaigns.results import Result, StruckFault
from tests.campaigns.stage import PREFIX, START_TIMEOUT_S, Stage, one_broker
from tests.campaigns.verdict import Verdict
from tests.e2e.harness import wait_until
from tests.faults.campaign.judge.answers import judge_answers
from tests.faults.campaign.judge.judging import Case, judge, read_evidence
from tests.harness.ports import gateway_port
from tests.harness.rocketmq_clients import SETTINGS
from tests.rocketmq.balancer import Balancer
from tests.rocketmq.load import GROUPS, ORDERLY, TIMEOUT_S, Load

GATEWAYS, PLAIN = "gateways", "plain"
DELAY = "longest time from send to receipt (s)"
BROKER = "broker-a/0"


class Violation(StrEnum):
    """The kinds of violations about messages. The judge of the log has its own kinds."""

    MISSING = "not received"
    """A message was acknowledged, and a group has not received it."""
    ORDER = "out of order"
    """An orderly group has received a message of a queue first after a later one."""


class RocketMqStage(Stage):
    """A name server, a broker, consumers in two JVMs and a producer. `side` says what is before the cluster:
    GATEWAYS or nothing, PLAIN.
    """

    def __init__(self, folder: Path, *, seed: int, side: str) -> None:
        super().__init__(folder, seed, brokers=one_broker(folder))
        self.side = side
        self.cluster = EmbeddedRocketMq(folder / "rocketmq", overrides=SETTINGS)
        self.gateways: list[RestartingProcess] = []
        self.load: Load

    def start(self) -> Self:
        if self.side == GATEWAYS:
            return super().start()
        with ExitStack() as stack:
            self.start_load(stack)
            self._stack = stack.pop_all()
        return self

    def start_load(self, stack: ExitStack) -> None:
        stack.callback(self.cluster.kill)
        self.cluster.start()
        name_server = self.cluster.name_server.address
        if self.side == GATEWAYS:
            self.start_coordinators(stack)
            name_server = str(self._start_gateways(stack))
        self.load = stack.enter_context(Load(self.cluster, name_server, self.folder))
        self.wait_for_progress()

    def _start_gateways(self, stack: ExitStack) -> Address:
        """Start two gateways with one address, which is returned. A gateway has the same ports in each start.
        If it is stopped, it starts again, too.
        """
        port = gateway_port(above=1)
        clients, *gateways = (Address(f"127.0.0.{number}", port) for number in range(1, 4))
        options = (
            *("--namesrv", self.cluster.name_server.address, "--broker-port", f"{BROKER}={port + 1}"),
            *("--advertised-listeners", f"{clients.host}:{{port}}"),
        )
        for address in gateways:
            name = f"gateway-{address.host}"
            gateway = self.start_gateway(
                stack,
                name,
                address,
                "--gateway-name",
                name,
                *options,
                command="rocketmq-gateway",
                final_codes=(),
            )
            self.gateways.append(gateway)
        for at in (port, port + 1):
            servers = [Address(gateway.host, at) for gateway in gateways]
            stack.enter_context(Balancer(Address(clients.host, at), servers))
        return clients

    @property
    def load_so_far(self) -> str:
        refused = self.load.refused
        return f"{len(self.load.sent)} messages, {refused.total()} failed {refused.most_common(1)}"

    def now(self) -> int:
        return at_ms(time.monotonic())

    def before_fault(self, struck: StruckFault, random: Random) -> None:
        """Do nothing, because no fault needs a preparation."""

    def after_fault(self, struck: StruckFault) -> None:
        self.note_outages()

    def wait_for_progress(self) -> float:
        """Wait until the clients go on, and then for the coordinator, which they may not have needed."""
        took_s = self.load.wait_for_progress()
        if self.coordinators:
            wait_until(self._is_coordinator_ready, "the coordinator", START_TIMEOUT_S)
        return took_s

    def _is_coordinator_ready(self) -> bool:
        # The status of a process that was killed is still there.
        return self.has_said_ready(self.coordinator) and self.phase(self.coordinator) is ServicePhase.READY

    def judge(self, result: Result) -> None:
        self.load.stop_sending()
        for group in GROUPS:
            result.take(self._lost(group))
        result.take(self._out_of_order())
        self._measure_delays(result.struck)
        self.load.close()
        received = [self.load.received(group) for group in GROUPS]
        deliveries = sum(map(len, received))
        result.numbers = {
            "messages": len(self.load.sent),
            "failed sends": self.load.refused.total(),
            "deliveries": deliveries,
            "of these again": deliveries - sum(len({it.body for it in one}) for one in received),
        }
        if self.side == GATEWAYS:
            self._judge_log(result)
            self.replay(result)

    def _judge_log(self, result: Result) -> None:
        """Judge what the coordinator's topics have, once nobody sends requests any more."""
        for gateway in self.gateways:
            gateway.stop()
        self.note_outages()
        case = Case(PREFIX, "", self.outages)
        found = read_evidence(self.servers, case)

        def is_answered() -> bool:
            nonlocal found
            found = read_evidence(self.servers, case)
            return not any(judge_answers(found))

        with suppress(AssertionError):
            wait_until(is_answered, "the last answers")
        result.take(judge(found, case))
        result.numbers["requests about groups"] = len(found.requests)

    def _lost(self, group: str) -> Iterator[Verdict]:
        """Yield the messages that do not reach a group although it has time for them."""
        with suppress(AssertionError):
            wait_until(lambda: not self.load.missing(group), "the last messages", TIMEOUT_S)
        for number in sorted(self.load.missing(group)):
            sent_ms = at_ms(self.load.sent[number][0])
            yield Verdict(Violation.MISSING, sent_ms, group, f"message {number} was not received")

    def _out_of_order(self) -> Iterator[Verdict]:
        """Yield messages that come first after a later one of their queue."""
        newest: dict[str, int] = {}
        seen: set[str] = set()
        for message in self.load.received(ORDERLY):
            if message.body in seen:
                continue
            seen.add(message.body)
            if message.offset < newest.get(message.queue, -1):
                sentence = f"{message.queue}: offset {message.offset} after {newest[message.queue]}"
                yield Verdict(Violation.ORDER, at_ms(message.at_s), ORDERLY, sentence)
            newest[message.queue] = max(message.offset, newest.get(message.queue, -1))

    def _measure_delays(self, struck: Sequence[StruckFault]) -> None:
        """Note the longest time from a send until both groups have the message, for the sends from each fault
        until the next one.
        """
        arrived: dict[int, float] = {}
        for group in GROUPS:
            first = {int(message.body): message.at_s for message in reversed(self.load.received(group))}
            arrived = {number: max(at_s, arrived.get(number, 0.0)) for number, at_s in first.items()}
        begins = [it.at for it in struck]
        for fault, begin, end in zip(struck, begins, [*begins[1:], self.now()], strict=True):
            delays = (
                arrived[number] - at_s
                for number, (at_s, _) in self.load.sent.items()
                if begin <= at_ms(at_s) < end and number in arrived
            )
            fault.measured[DELAY] = max(delays, default=0.0)


def at_ms(monotonic_s: float) -> int:
    """Return a monotonic time as one of the topics' clock."""
    return int((time.time() - time.monotonic() + monotonic_s) * 1000)
