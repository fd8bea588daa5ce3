"""Measure a restart: the coordinator stops with a stable group, a request is appended, the coordinator starts.

The table has the seconds from the start of the process until each stage ended, and until the answer came.
"""

import argparse
import signal
import sys
import tempfile
import time
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from bench.asker import Asker
from bench.groups import form_groups, heartbeat_request
from bench.measure import percentile
from bench.report import say
from cli.logs import configure_logs
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout

START_TIMEOUT_S = 180.0


def main() -> None:
    """Restart a coordinator some times and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--groups", type=int, default=20)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    configure_logs()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        print(table(measure(Path(folder), given.restarts, given.groups)))


def measure(folder: Path, restarts: int, groups: int) -> list[dict[str, float]]:
    """Restart the coordinator. Returns the seconds until each stage ended, for each restart."""
    layout = TopicLayout.named("restart")
    with EmbeddedBroker(folder / "broker") as broker:
        servers = broker.bootstrap_servers
        say("a first coordinator")
        first = _Started(servers, folder / "coordinator", layout)
        first.ready()
        with closing(Asker(servers, layout)) as asker:
            formed = form_groups(asker, [f"group-{i}" for i in range(groups)])
            first.stop()
            found = []
            for i in range(restarts):
                say(f"restart {i + 1} of {restarts}")
                request = heartbeat_request(asker, "group-0", *formed["group-0"])
                asker.send(request)
                again = _Started(servers, folder / "coordinator", layout)
                _, here_s = asker.wait({request.correlation_id})[request.correlation_id]
                found.append(again.ready() | {"answer": here_s - again.began_s})
                again.stop()
    return found


def table(restarts: list[dict[str, float]]) -> str:
    """Medians over all restarts, and the longest."""
    lines = [f"{'seconds from the start of the process until':<46}{'median':>8}{'longest':>9}"]
    for stage in sorted(restarts[0], key=lambda stage: restarts[0][stage]):
        values = [restart[stage] for restart in restarts]
        lines.append(f"  {stage:<44}{percentile(values, 0.5):>8.2f}{max(values):>9.2f}")
    return "\n".join(lines)


class _Started:
    """A coordinator in a process of its own. `began_s` is the time of the process's start."""

    def __init__(self, bootstrap_servers: str, folder: Path, layout: TopicLayout) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.began_s = time.time()
        args = (theirs, bootstrap_servers, folder, layout)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> dict[str, float]:
        """The seconds from the start of the process until each stage ended. Waits until batches are committed.

        Raises TimeoutError.
        """
        if not self._connection.poll(START_TIMEOUT_S):
            raise TimeoutError("the coordinator is not ready")
        imported_s, ends_s = self._connection.recv()
        imports_s = imported_s - self.began_s
        return {"imports": imports_s} | {stage: imports_s + end_s for stage, end_s in ends_s.items()}

    def stop(self) -> None:
        """Stop the coordinator in order."""
        self._connection.close()
        self._process.join(START_TIMEOUT_S)


def _serve(connection: Connection, bootstrap_servers: str, folder: Path, layout: TopicLayout) -> None:
    from embedded.broker import HOST
    from gateway.service import GatewayOptions, serving
    from gateway.upstream.connections import Address
    from streaming.service.coordinator import Coordinator, Options
    from streaming.service.status import Phase

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the bench, which closes the connection
    imported_s = time.time()
    gateway = GatewayOptions(bootstrap_servers, layout, Address(HOST, 0))
    coordinator = Coordinator(Options(bootstrap_servers, folder, layout), gateway=lambda: serving(gateway))
    with coordinator:
        coordinator.status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S)
        connection.send((imported_s, coordinator.start_times_s))
        try:
            connection.recv()
        except EOFError:
            return


if __name__ == "__main__":
    main()
