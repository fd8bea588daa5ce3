"""Several processes of one gateway, which share its ports (SO_REUSEPORT: the kernel spreads the connections).

The parent serves no client. It starts the processes, reads their numbers and checks, and ends them. If one of
them ends by itself, the parent ends with its reason, just as the death of a thread ends a gateway of a single
process. A process ends when its parent is gone.
"""

import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeVar

from kafka.errors import KafkaError

from cli.gateway_options import Listening
from gateway.metrics.numbers import Numbers, sum_numbers, without_gauges
from gateway.net.listener import CannotListen
from gateway.running import LOOP_TIMEOUT_S, Checks, RunningGateway
from gateway.service import STARTUP_ERRORS, running
from kafka_why.cli.output import StopEvent, configure_logs, exit_on_signals, stop_on_signals, watching_threads
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.topic_reader import ClientError, layout_on

# How long a process may take to end after the drain timeout.
_END_TIMEOUT_S = 40.0
_CALL_TIMEOUT_S = LOOP_TIMEOUT_S + 1.0

T = TypeVar("T")


class ProcessFailed(RuntimeError):
    """The error when a process of the gateway does not start."""


class ServedGateway(Protocol):
    """A gateway of one or several processes, like `gateway.service.RunningGateway`."""

    @property
    def address(self) -> Address: ...
    def numbers(self) -> Numbers: ...
    def checks(self, exclude: Collection[str] = ()) -> Checks: ...
    def drain(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of the gateway's processes, for another process to read."""

    client_config: ClientConfig
    prefix: str
    listening: Listening


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A report of a process: its address when it is ready, or the error that ends it."""

    address: str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Child:
    """A process, with pipes for its reports and its answers."""

    process: BaseProcess
    reports: Connection
    answers: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0
    """The number of the latest call."""
    last: Numbers = field(default_factory=dict)
    """The metrics in the latest answer of the process."""

    def call(self, name: str, *arguments: object) -> object:
        """Call a method of the process's gateway.

        Raises OSError, EOFError or TimeoutError if it does not answer.
        """
        with self.lock:
            self.number += 1
            self.answers.send((self.number, name, arguments))
            give_up_s = time.monotonic() + _CALL_TIMEOUT_S
            while self.answers.poll(give_up_s - time.monotonic()):
                number, answer = self.answers.recv()
                if number != self.number:
                    continue  # the late answer to an earlier call
                if isinstance(answer, TimeoutError):
                    raise answer
                return answer
        raise TimeoutError(f"{self.process.name} does not answer")

    def numbers(self) -> Numbers:
        """Return the process's metrics."""
        try:
            self.last = self.call("numbers")  # type: ignore[assignment]
        except (OSError, EOFError):
            # A sum of counters must not fall, so the last ones of a silent process count.
            return without_gauges(self.last)
        return self.last

    def checks(self, exclude: Collection[str]) -> Checks | Exception:
        try:
            return self.call("checks", list(exclude))  # type: ignore[return-value]
        except (OSError, EOFError) as error:
            return error


class GatewayProcesses:
    """The processes of the gateway, used as one."""

    def __init__(self, address: Address, children: Sequence[_Child]) -> None:
        self.address = address
        self._children = children

    def numbers(self) -> Numbers:
        """Return the sum over the processes, with the last counters of one that does not answer."""
        return sum_numbers(self._concurrently(_Child.numbers))

    def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Return the checks of all processes, each with the first reason."""
        found: Checks = {}
        answers = self._concurrently(lambda child: child.checks(exclude))
        for child, checks in zip(self._children, answers, strict=True):
            name = child.process.name
            if isinstance(checks, Exception):
                found[name] = f"it does not answer: {checks!r}"
                continue
            for check, reason in checks.items():
                found[check] = found.get(check) or (reason and f"{name}: {reason}")
        return found

    def drain(self, timeout_s: float) -> None:
        """End the processes, which drain first."""
        _end(self._children, timeout_s + _END_TIMEOUT_S)

    def _concurrently(self, call: Callable[[_Child], T]) -> list[T]:
        """Call all processes at the same time, so that stuck ones cost one timeout together."""
        with ThreadPoolExecutor(len(self._children)) as threads:
            return list(threads.map(call, self._children))


@contextmanager
def serving_processes(plan: ProcessOptions, processes: int, stop: StopEvent) -> Iterator[GatewayProcesses]:
    """Run the gateway in this many processes, and yield it when all are ready.

    `stop` is set with a reason when a process ends. Raises CannotListen if another program has the port,
    ProcessFailed if a process cannot start.
    """
    _check_free(plan.listening.listen)
    context = get_context("spawn")
    first_partition = random.SystemRandom().randrange(2**16)
    with ExitStack() as stack:
        children: list[_Child] = []
        stack.callback(_end, children, plan.listening.drain_timeout_s + _END_TIMEOUT_S)
        for number in range(processes):
            reports, their_reports = context.Pipe()
            answers, their_answers = context.Pipe()
            # A daemon, so that an exit of the parent ends it in any case.
            process = context.Process(
                target=_serve,
                args=(plan, first_partition + number, their_reports, their_answers),
                name=f"gateway-{number}",
                daemon=True,
            )
            process.start()
            their_reports.close()
            their_answers.close()
            children.append(_Child(process, reports, answers))
        addresses = [_ready(child) for child in children]
        threading.Thread(target=_watch, args=(children, stop), name="gateway-processes", daemon=True).start()
        yield GatewayProcesses(addresses[0], children)
        stop.set()


def _check_free(listen: Address) -> None:
    """Raise CannotListen if the port is taken, because another gateway would share it by SO_REUSEPORT."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotListen(f"cannot listen at {listen}: {error}") from error


def _ready(child: _Child) -> Address:
    try:
        outcome: _Outcome = child.reports.recv()
    except EOFError:
        child.process.join()
        raise ProcessFailed(
            f"the process {child.process.name} ended with exit code {child.process.exitcode}"
        ) from None
    if outcome.address is None:
        raise ProcessFailed(outcome.error)
    return Address.parse(outcome.address)


def _watch(children: Sequence[_Child], stop: StopEvent) -> None:
    """Fail with the reason of the first process that ends before `stop` is set."""
    by_sentinel = {child.process.sentinel: child for child in children}
    ended = connection.wait(by_sentinel)
    if stop.is_set():
        return
    child = by_sentinel[ended[0]]  # type: ignore[index]
    child.process.join()
    reason = f"it ended with exit code {child.process.exitcode}"
    if child.reports.poll():
        with suppress(EOFError):
            reason = child.reports.recv().error
    stop.fail(f"the process {child.process.name}: {reason}")


def _end(children: Sequence[_Child], timeout_s: float) -> None:
    """End all processes in order, and by force those that stay."""
    for child in children:
        child.process.terminate()
    for child in children:
        child.process.join(timeout_s)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()


def _serve(plan: ProcessOptions, number: int, reports: Connection, answers: Connection) -> None:
    configure_logs()
    exit_on_signals()
    stop = StopEvent()
    try:
        security = plan.listening.security()
        layout = layout_on(plan.client_config, plan.prefix)
        options = replace(plan.listening.options(plan.client_config, layout, security), shares_ports=True)
        if options.reply_partition is None:
            options = replace(options, reply_partition=number % layout.reply_partitions)
        with watching_threads(stop.fail), running(options) as gateway:
            stop_on_signals(stop)
            reports.send(_Outcome(address=str(gateway.address)))
            threading.Thread(target=_stop_with_parent, args=(reports, stop), daemon=True).start()
            threading.Thread(target=_answer, args=(gateway, answers), daemon=True).start()
            stop.wait()
            if stop.failure is None:
                gateway.drain(plan.listening.drain_timeout_s)
        if stop.failure is not None:
            reports.send(_Outcome(error=stop.failure))
            raise SystemExit(1)
    except (*STARTUP_ERRORS, ClientError, KafkaError) as error:
        reports.send(_Outcome(error=str(error)))
        raise SystemExit(1) from None


def _answer(gateway: RunningGateway, answers: Connection) -> None:
    with suppress(EOFError, OSError, RuntimeError):  # the parent or the gateway has ended
        while True:
            number, name, arguments = answers.recv()
            try:
                answer = getattr(gateway, name)(*arguments)
            except TimeoutError as error:  # the event loop is stuck
                answer = error
            answers.send((number, answer))


def _stop_with_parent(reports: Connection, stop: StopEvent) -> None:
    try:
        reports.recv()
    except (EOFError, OSError):
        stop.set()
