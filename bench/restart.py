"""Measure a restart: a coordinator with groups stops, a request is appended, the coordinator starts again.

The tables have the seconds from the start of the process until each stage ended and until the answer came.
The processor time until then depends less on other load on the machine.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from bench.load.requests import heartbeat_request
from bench.load.topics import TopicsClient
from bench.report import say
from bench.stats import percentile
from bench.systems import cpu_s
from embedded.broker import EmbeddedBroker
from embedded.java import QUICK_COMPILER
from kafka_why.cli.output import configure_logs
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.query.spark_settings import DEFAULT_JAVA_OPTIONS

VARIANTS: dict[str, dict[str, str]] = {
    "as-it-is": {},
    "no-archive": {DEFAULT_JAVA_OPTIONS: QUICK_COMPILER},
    "optimizing-compiler": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"},
    "serial-gc": {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"},
}
# Rows of the table that are not the end of a stage, but processor time until the coordinator is ready.
PROCESSOR = ("processor time: Spark", "processor time: service")
PREFIX = "restart"
START_TIMEOUT_S = 180.0


def main() -> None:
    """Restart a coordinator several times, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["as-it-is", "no-archive"])
    parser.add_argument("--groups", type=int, default=20)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    configure_logs()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        restarts = measure(Path(folder), args.variants, args.restarts, args.groups)
    print("\n".join(table(name, variant_restarts) for name, variant_restarts in restarts.items()))


def measure(
    folder: Path, variants: list[str], restarts: int, groups: int
) -> dict[str, list[dict[str, float]]]:
    """Restart the coordinator with the variants in turns. Return the stages' seconds of each restart."""
    layout = TopicLayout.named(PREFIX)
    with EmbeddedBroker(folder / "broker") as broker:
        servers = broker.client_config
        say("a first coordinator")
        first = _Started(servers, folder / "coordinator", layout, {})
        first.ready()
        with TopicsClient(str(servers), PREFIX, packed=False) as client:
            members = client.form_groups([f"group-{i}" for i in range(groups)])
            (heartbeat,) = client.records([heartbeat_request(members[0])])
            first.stop()
            stages_s: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
            for i in range(restarts):
                for name in variants:
                    say(f"restart {i + 1} of {restarts}: {name}")
                    coordinator = _Started(servers, folder / "coordinator", layout, VARIANTS[name])
                    client.time_one(heartbeat)
                    answered_s = time.time() - coordinator.started_s
                    stages_s[name].append(coordinator.ready() | {"answer": answered_s})
                    coordinator.stop()
    return stages_s


def table(name: str, restarts: list[dict[str, float]]) -> str:
    """Return the medians over all restarts, and the longest times."""
    lines = [f"{name + ': seconds until':<46}{'median':>8}{'longest':>9}"]
    for stage in sorted(restarts[0], key=lambda stage: (stage in PROCESSOR, restarts[0][stage])):
        values = [restart[stage] for restart in restarts]
        lines.append(f"  {stage:<44}{percentile(values, 0.5):>8.2f}{max(values):>9.2f}")
    return "\n".join(lines)


class _Started:
    """A coordinator in a process of its own. `started_s` is the time of the process's start."""

    def __init__(
        self, client_config: ClientConfig, folder: Path, layout: TopicLayout, spark: dict[str, str]
    ) -> None:
        context = get_context("spawn")
        self._connection, child_end = context.Pipe()
        self.started_s = time.time()
        args = (child_end, client_config, folder, layout, spark)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        child_end.close()

    def ready(self) -> dict[str, float]:
        """Wait until batches are committed. Returns the seconds from the start of the process until each
        stage ended. Raises TimeoutError.
        """
        if not self._connection.poll(START_TIMEOUT_S):
            raise TimeoutError("the coordinator is not ready")
        imported_at_s, stage_ends_s, *processor_s = self._connection.recv()
        imports_s = imported_at_s - self.started_s
        # `start_times_s` counts from the construction of the coordinator, right after the imports.
        stages = {stage: imports_s + end_s for stage, end_s in stage_ends_s.items()}
        return {"imports": imports_s} | stages | dict(zip(PROCESSOR, processor_s, strict=True))

    def stop(self) -> None:
        """Stop the coordinator gracefully."""
        self._connection.close()
        self._process.join(START_TIMEOUT_S)


def _serve(
    connection: Connection,
    client_config: ClientConfig,
    folder: Path,
    layout: TopicLayout,
    spark: dict[str, str],
) -> None:
    """Run a coordinator until the other end of the connection closes. Send the times of its start."""
    # Imported here, because these imports are a stage of the start that is measured.
    from embedded.java import HOST
    from gateway.net.server import GatewayOptions
    from gateway.service import serving
    from gateway.upstream.connections import Address
    from kafka_why.contract.service import ServicePhase
    from streaming.service.coordinator import Coordinator
    from streaming.service.starts import Options

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the bench, which closes the connection
    imported_at_s = time.time()

    @contextmanager
    def gateway() -> Iterator[str]:
        with serving(GatewayOptions(client_config, layout, Address(HOST, 0))) as address:
            yield str(address)

    options = Options(client_config, folder, layout, spark=spark)
    coordinator = Coordinator(options, gateway=gateway)
    with coordinator:
        coordinator.status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S)
        spark_s = cpu_s(coordinator.jvm_pid)
        connection.send((imported_at_s, coordinator.start_times_s, spark_s, time.process_time()))
        try:
            connection.recv()
        except EOFError:
            return


if __name__ == "__main__":
    main()
