"""Several processes of one gateway, which share its ports (SO_REUSEPORT: the kernel spreads the connections).

The parent serves no client. It starts the processes and ends them. A process that ends by itself ends the
parent with its reason, as a thread that dies ends a single process. A process ends when its parent is gone.
"""

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from kafka.errors import KafkaError

from cli.gateway_options import Listening
from cli.logs import configure_logs
from cli.signals import exit_on_signals, stop_on_signals
from cli.thread_deaths import Stop, watching_threads
from clients.coordinator_client import layout_on
from clients.pending import ClientError
from gateway.net.server import CannotListen
from gateway.service import STARTUP_ERRORS, serving
from records.address import Address
from records.client_config import ClientConfig

_END_TIMEOUT_S = 40.0


class ProcessFailed(RuntimeError):
    """A process of the gateway did not start."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a process of the gateway serves, in a form that another process can read."""

    client_config: ClientConfig
    prefix: str
    listening: Listening


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a process reports: its address when it is ready, or else the reason why it ends."""

    address: str | None = None
    error: str | None = None


@contextmanager
def serving_processes(plan: Plan, processes: int, stop: Stop) -> Iterator[Address]:
    """Run the gateway in this many processes, and yield the first listener's address when all are ready.
    `stop` is set with a reason when one of them ends.

    Raises CannotListen if another program has the port, ProcessFailed if a process cannot start.
    """
    _check_free(plan.listening.listen)
    context = get_context("spawn")
    first_partition = random.SystemRandom().randrange(2**16)
    with ExitStack() as stack:
        children: list[tuple[BaseProcess, Connection]] = []
        stack.callback(_end, children)
        for number in range(processes):
            ours, theirs = context.Pipe()
            # A daemon, so that an exit of the parent ends it in any case.
            child = context.Process(
                target=_serve,
                args=(plan, first_partition + number, theirs),
                name=f"gateway-{number}",
                daemon=True,
            )
            child.start()
            theirs.close()
            children.append((child, ours))
        addresses = [_ready(child, reports) for child, reports in children]
        threading.Thread(target=_watch, args=(children, stop), name="gateway-processes", daemon=True).start()
        yield addresses[0]
        stop.set()


def _check_free(listen: Address) -> None:
    """SO_REUSEPORT would also let another gateway share the port, without an error."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise CannotListen(f"cannot listen at {listen}: {error}") from error


def _ready(child: BaseProcess, reports: Connection) -> Address:
    try:
        outcome: _Outcome = reports.recv()
    except EOFError:
        child.join()
        raise ProcessFailed(f"the process {child.name} ended with exit code {child.exitcode}") from None
    if outcome.address is None:
        raise ProcessFailed(outcome.error)
    return Address.parse(outcome.address)


def _watch(children: Sequence[tuple[BaseProcess, Connection]], stop: Stop) -> None:
    """Fail with the reason of the first process that ends before `stop` is set."""
    by_sentinel = {child.sentinel: (child, reports) for child, reports in children}
    ended = connection.wait(by_sentinel)
    if stop.is_set():
        return
    child, reports = by_sentinel[ended[0]]  # type: ignore[index]
    child.join()
    reason = f"it ended with exit code {child.exitcode}"
    if reports.poll():
        with suppress(EOFError):
            reason = reports.recv().error
    stop.fail(f"the process {child.name}: {reason}")


def _end(children: Sequence[tuple[BaseProcess, Connection]]) -> None:
    """End all processes in order, by force those that do not end."""
    for child, _ in children:
        child.terminate()
    for child, _ in children:
        child.join(_END_TIMEOUT_S)
        if child.is_alive():
            child.kill()
            child.join()


def _serve(plan: Plan, number: int, reports: Connection) -> None:
    """The main function of a process. It ends when the parent has ended."""
    configure_logs()
    exit_on_signals()
    stop = Stop()
    try:
        security = plan.listening.security()
        layout = layout_on(plan.client_config, plan.prefix)
        options = replace(plan.listening.options(plan.client_config, layout, security), shares_ports=True)
        if options.reply_partition is None:
            options = replace(options, reply_partition=number % layout.reply_partitions)
        with watching_threads(stop.fail), serving(options) as address:
            stop_on_signals(stop)
            reports.send(_Outcome(address=str(address)))
            threading.Thread(target=_stop_with_parent, args=(reports, stop), daemon=True).start()
            stop.wait()
        if stop.failure is not None:
            reports.send(_Outcome(error=stop.failure))
            raise SystemExit(1)
    except (*STARTUP_ERRORS, ClientError, KafkaError) as error:
        reports.send(_Outcome(error=str(error)))
        raise SystemExit(1) from None


def _stop_with_parent(reports: Connection, stop: Stop) -> None:
    try:
        reports.recv()
    except (EOFError, OSError):
        stop.set()
