"""Variants of the coordinator's settings, each in a process that can be paused."""

import gc
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.floor import start_floor
from cli.processes.child import family
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.metrics.batch_progress import BatchProgress
from state.dispatch import step
from streaming.query.session import Session
from streaming.service import coordinator as service
from streaming.service.clock.pace import REST_INTERVAL_MS
from streaming.service.clock.ticker import DEFAULT_INTERVAL_MS
from streaming.service.coordinator import Coordinator
from streaming.service.query.batches import ProgressReader
from streaming.service.starts import Options
from streaming.service.topics import prepare_topics

START_TIMEOUT_S = 180.0
INITIAL_DELAY_MS = 500


@dataclass(frozen=True)
class Variant:
    """The differences from the default coordinator.

    With `is_frozen`, garbage collections in the workers skip the objects of their imports (`gc.freeze`). With
    `is_floor`, a query that only copies records runs instead of the coordinator.
    """

    spark: Mapping[str, str] = field(default_factory=dict)
    tick_interval_ms: int = DEFAULT_INTERVAL_MS
    rest_interval_ms: int = REST_INTERVAL_MS
    is_frozen: bool = True
    is_floor: bool = False


class RunningVariant:
    """A variant in processes of its own, paused except within `awake`. The constructor starts them."""

    def __init__(self, name: str, variant: Variant, client_config: ClientConfig, folder: Path) -> None:
        self.name = name
        self.layout = TopicLayout.named(name)
        context = get_context("spawn")
        self._connection, child_end = context.Pipe()
        args = (child_end, variant, client_config, folder, self.layout)
        self._process = context.Process(target=_serve, args=args, daemon=True)
        self._process.start()
        child_end.close()
        if not self._connection.poll(START_TIMEOUT_S):
            raise TimeoutError(f"variant {name} is not ready, see {folder}")
        self._connection.recv()
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """The id of the variant's Python process. Spark's JVM and its Python workers descend from it."""
        assert self._process.pid is not None
        return self._process.pid

    def batches(self) -> list[BatchProgress]:
        """Return the batches since the last call. The variant must be awake."""
        self._connection.send("batches")
        batches: list[BatchProgress] = self._connection.recv()
        return batches

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the variant run until the block ends."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """End the processes."""
        self._signal(signal.SIGCONT)
        self._connection.close()
        self._process.join(START_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        for pid in family(self.pid):
            with suppress(ProcessLookupError):  # an idle worker has ended meanwhile
                os.kill(pid, number)


def _serve(
    connection: Connection, variant: Variant, client_config: ClientConfig, folder: Path, layout: TopicLayout
) -> None:
    """Run a variant until the other end of the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the bench, which closes the connection
    serve = _serve_floor if variant.is_floor else _serve_coordinator
    try:
        serve(connection, variant, client_config, folder, layout)
    except EOFError:
        return


def _serve_coordinator(
    connection: Connection, variant: Variant, client_config: ClientConfig, folder: Path, layout: TopicLayout
) -> None:
    if not variant.is_frozen:
        service.Operator = partial(service.Operator, step=_step_unfrozen)  # type: ignore[attr-defined, assignment]
    batches: list[BatchProgress] = []
    options = Options(
        client_config,
        folder,
        layout,
        settings={"group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS)},
        tick_interval_ms=variant.tick_interval_ms,
        rest_interval_ms=variant.rest_interval_ms,
        spark=variant.spark,
    )
    with Coordinator(options, on_batch=batches.append) as coordinator:
        coordinator.status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S)
        connection.send(coordinator.jvm_pid)
        while connection.recv():
            count = len(batches)  # a batch may be appended meanwhile
            connection.send(batches[:count])
            del batches[:count]


def _serve_floor(
    connection: Connection, variant: Variant, client_config: ClientConfig, folder: Path, layout: TopicLayout
) -> None:
    prepare_topics(client_config, layout)
    folder.mkdir()
    with Session(log_path=folder / "spark.log", ui_port=0, extra=variant.spark) as session:
        query = start_floor(session.spark, client_config, layout, str(folder / "spark"))
        reader = ProgressReader(query)
        connection.send(session.jvm_pid)
        try:
            while connection.recv():
                connection.send(reader.new_batches())
        finally:
            query.stop()


@cache
def _unfreeze_once() -> None:
    gc.unfreeze()


def _step_unfrozen(*args: Any, **kwargs: Any) -> Any:
    """Call `step` in a worker after undoing its `gc.freeze()`.

    So garbage collections visit the objects of its imports, as without `Variant.is_frozen`.
    """
    _unfreeze_once()
    return step(*args, **kwargs)
