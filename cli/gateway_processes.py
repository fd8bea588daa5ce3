"""Several processes of one gateway, which share its ports (SO_REUSEPORT: the kernel spreads the connections).

The parent serves no client. It starts the processes, collects their metrics and readiness checks over pipes,
and ends them. If a process ends by itself, the parent ends with its reason, just as the death of a thread
ends a gateway of a single process. A process ends when its parent is gone.
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
from typing import TypeVar

from kafka.errors import KafkaError

from cli.gateway_options import ListenerOptions
from gateway.metrics.numbers import Numbers, sum_numbers, without_gauges
from gateway.net.listener import CannotListen
from gateway.running import LOOP_TIMEOUT_S, Checks, RunningGateway
from gateway.service import running
from kafka_why.cli.output import StopEvent, configure_logs, exit_on_signals, stop_on_signals, watching_threads
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.errors import UserFacingError
from kafka_why.topic_reader import layout_on

# How long a process may take to end after the drain timeout.
_END_TIMEOUT_S = 40.0
_CALL_TIMEOUT_S = LOOP_TIMEOUT_S + 1.0

T = TypeVar("T")


@dataclass(slots=True)
class _Child:
    """A process, with two pipes to it.

    `reports` gets its `Address` when it is ready, and the error that ends it as text. `answers` carries calls
    to its gateway, and their results.
    """

    process: BaseProcess
    reports: Connection
    answers: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_call_number: int = 0
    last_metrics: Numbers = field(default_factory=dict)
    """The metrics in the latest answer of the process."""

    def call(self, name: str, *arguments: object) -> object:
        """Call a method of the process's gateway.

        Raises OSError or EOFError if it does not answer, above all TimeoutError, which is an OSError.
        """
        with self.lock:
            self.last_call_number += 1
            self.answers.send((self.last_call_number, name, arguments))
            deadline_s = time.monotonic() + _CALL_TIMEOUT_S
            while self.answers.poll(deadline_s - time.monotonic()):
                number, answer = self.answers.recv()
                if number != self.last_call_number:
                    continue  # the late answer to an earlier call
                if isinstance(answer, TimeoutError):
                    raise answer
                return answer
        raise TimeoutError(f"{self.process.name} does not answer")

    def numbers(self) -> Numbers:
        """Return the process's metrics, or its last counters if it does not answer."""
        try:
            self.last_metrics = self.call("numbers")  # type: ignore[assignment]
        except (OSError, EOFError):
            # A sum of counters must not fall, so the last counters of a silent process still count.
            return without_gauges(self.last_metrics)
        return self.last_metrics

    def checks(self, exclude: Collection[str]) -> Checks | Exception:
        """Return the checks of the process's gateway, or the error if the process does not answer."""
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
        """Return the summed metrics of the processes, with the last counters of any that does not answer."""
        return sum_numbers(self._concurrently(_Child.numbers))

    def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Return for each check why it fails in the first process that fails it, or None if all pass it."""
        reasons: Checks = {}
        answers = self._concurrently(lambda child: child.checks(exclude))
        for child, checks in zip(self._children, answers, strict=True):
            name = child.process.name
            if isinstance(checks, Exception):
                reasons[name] = f"it does not answer: {checks!r}"
                continue
            for check, reason in checks.items():
                reasons[check] = reasons.get(check) or (f"{name}: {reason}" if reason else None)
        return reasons

    def drain(self, timeout_s: float) -> None:
        """End the processes. Each first finishes the responses in progress, for at most `timeout_s`."""
        _end_processes(self._children, timeout_s + _END_TIMEOUT_S)

    def _concurrently(self, call: Callable[[_Child], T]) -> list[T]:
        """Call all processes at the same time, so that several stuck processes cost only one timeout."""
        with ThreadPoolExecutor(len(self._children)) as threads:
            return list(threads.map(call, self._children))


ServedGateway = RunningGateway | GatewayProcesses
"""A gateway of one or several processes."""


@contextmanager
def serving_processes(
    client_config: ClientConfig, prefix: str, listening: ListenerOptions, processes: int, stop: StopEvent
) -> Iterator[GatewayProcesses]:
    """Run the gateway in this many processes, and yield it when all are ready.

    `stop` is set with a reason when a process ends by itself. Raises CannotListen if another program has the
    port, UserFacingError if a process cannot start.
    """
    _check_free(listening.listen)
    context = get_context("spawn")
    # Each process reads its answers from its own partition of the responses topic. The first one is random,
    # as for a single gateway. `_run_process` takes the remainder by the number of partitions.
    first_reply_partition = random.SystemRandom().randrange(2**16)
    with ExitStack() as stack:
        children: list[_Child] = []
        stack.callback(_end_processes, children, listening.drain_timeout_s + _END_TIMEOUT_S)
        for number in range(processes):
            reports, their_reports = context.Pipe()
            answers, their_answers = context.Pipe()
            # A daemon, so that an exit of the parent ends it in any case.
            process = context.Process(
                target=_run_process,
                args=(
                    *(client_config, prefix, listening),
                    *(first_reply_partition + number, their_reports, their_answers),
                ),
                name=f"gateway-{number}",
                daemon=True,
            )
            process.start()
            # The child has its own copies. While these were open, `recv` would not notice the child's end.
            their_reports.close()
            their_answers.close()
            children.append(_Child(process, reports, answers))
        addresses = [_wait_until_ready(child) for child in children]
        threading.Thread(
            target=_watch_processes, args=(children, stop), name="gateway-processes", daemon=True
        ).start()
        yield GatewayProcesses(addresses[0], children)
        stop.set()  # so that the watching thread does not report the processes that end now


def _check_free(listen: Address) -> None:
    """Raise CannotListen if the port is taken. SO_REUSEPORT would silently share it with another gateway."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotListen(f"cannot listen at {listen}: {error}") from error


def _wait_until_ready(child: _Child) -> Address:
    try:
        outcome: Address | str = child.reports.recv()
    except EOFError:
        child.process.join()
        raise UserFacingError(
            f"the process {child.process.name} ended with exit code {child.process.exitcode}"
        ) from None
    if isinstance(outcome, str):
        raise UserFacingError(outcome)
    return outcome


def _watch_processes(children: Sequence[_Child], stop: StopEvent) -> None:
    """Make `stop` fail with the reason of the first process that ends before `stop` is set."""
    by_sentinel = {child.process.sentinel: child for child in children}
    ended_sentinels = connection.wait(by_sentinel)
    if stop.is_set():
        return
    child = by_sentinel[ended_sentinels[0]]  # type: ignore[index]
    child.process.join()
    reason = f"it ended with exit code {child.process.exitcode}"
    if child.reports.poll():
        with suppress(EOFError):
            reason = child.reports.recv()
    stop.fail(f"the process {child.process.name}: {reason}")


def _end_processes(children: Sequence[_Child], timeout_s: float) -> None:
    """Terminate all processes, and kill each that does not end within `timeout_s`."""
    for child in children:
        child.process.terminate()
    for child in children:
        child.process.join(timeout_s)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()


def _run_process(
    client_config: ClientConfig,
    prefix: str,
    listening: ListenerOptions,
    reply_partition: int,
    reports: Connection,
    answers: Connection,
) -> None:
    """Run one process of the gateway until a signal, a failure or the end of the parent."""
    configure_logs()
    exit_on_signals()
    stop = StopEvent()
    try:
        security = listening.security()
        layout = layout_on(client_config, prefix)
        options = replace(listening.options(client_config, layout, security), shares_ports=True)
        if options.reply_partition is None:
            options = replace(options, reply_partition=reply_partition % layout.reply_partitions)
        with watching_threads(stop.fail), running(options) as gateway:
            stop_on_signals(stop)
            reports.send(gateway.address)
            threading.Thread(target=_stop_with_parent, args=(reports, stop), daemon=True).start()
            threading.Thread(target=_answer_calls, args=(gateway, answers), daemon=True).start()
            stop.wait()
            if stop.failure is None:
                gateway.drain(listening.drain_timeout_s)
        if stop.failure is not None:
            reports.send(stop.failure)
            raise SystemExit(1)
    except (UserFacingError, KafkaError) as error:
        reports.send(str(error))
        raise SystemExit(1) from None


def _answer_calls(gateway: RunningGateway, answers: Connection) -> None:
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
        reports.recv()  # the parent sends nothing, so this waits until its end of the pipe is closed
    except (EOFError, OSError):
        stop.set()
