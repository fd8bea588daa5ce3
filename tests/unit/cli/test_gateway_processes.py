"""The numbers and checks of several processes together. Here threads answer in the place of processes."""

import threading
from collections.abc import Callable, Collection
from multiprocessing import Pipe, get_context

from cli import gateway_processes
from cli.gateway_processes import GatewayProcesses
from gateway.metrics.numbers import Numbers
from gateway.running import Checks
from kafka_why.connections.address import Address

PROCESSES = 2


class Answering:
    """A gateway's answers to another process."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before
        self.accepted = 0.0
        self.is_stuck = False

    def numbers(self) -> Numbers:
        self._answer()
        return {"connections_accepted": {(): [self.accepted]}, "connections": {(): [1.0]}}

    def checks(self, exclude: Collection[str]) -> Checks:
        self._answer()
        return {"brokers": None}

    def _answer(self) -> None:
        self._before()
        if self.is_stuck:
            raise TimeoutError("the event loop is stuck")


def together(*gateways: Answering) -> GatewayProcesses:
    children = []
    for number, gateway in enumerate(gateways):
        ours, theirs = Pipe()
        threading.Thread(target=gateway_processes._answer_calls, args=(gateway, theirs), daemon=True).start()
        process = get_context("spawn").Process(name=f"gateway-{number}")  # only its name is used
        children.append(gateway_processes._Child(process, ours, ours))
    return GatewayProcesses(Address("127.0.0.1", 9_192), children)


def test_counters_do_not_fall_while_a_process_is_stuck() -> None:
    first, second = Answering(), Answering()
    processes = together(first, second)
    first.accepted, second.accepted = 3, 4
    assert processes.numbers() == {"connections_accepted": {(): [7]}, "connections": {(): [2]}}
    second.is_stuck = True
    first.accepted, second.accepted = 5, 9
    assert processes.numbers() == {"connections_accepted": {(): [9]}, "connections": {(): [1]}}
    second.is_stuck = False
    assert processes.numbers() == {"connections_accepted": {(): [14]}, "connections": {(): [2]}}


def test_checks_name_a_stuck_process() -> None:
    first, second = Answering(), Answering()
    second.is_stuck = True
    found = together(first, second).checks()
    assert found["brokers"] is None
    assert "it does not answer" in (found["gateway-1"] or "")


def test_processes_are_queried_concurrently() -> None:
    """Neither answers before both are asked."""
    both = threading.Barrier(PROCESSES)
    processes = together(*(Answering(both.wait) for _ in range(PROCESSES)))
    assert processes.numbers()["connections"] == {(): [PROCESSES]}
    assert processes.checks() == {"brokers": None}
