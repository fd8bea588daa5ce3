"""Over some hundred batches the checkpoint and the heap of Spark's JVM are bounded.

Spark keeps less here than usual, so that what is kept for ever shows soon. The rows `checkpoint` and
`endurance` of the bench are the same with Spark's usual bounds, thousands of batches and real memory.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from bench.memory import MIB, heap_after_collection_bytes
from bench.rows.checkpoint import growth_of_most, sizes_in
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from tests.e2e.harness import coordinating, new_layout, note, stable_member

pytestmark = pytest.mark.e2e

STREAMING = "spark.sql.streaming"
KEPT = {
    f"{STREAMING}.minBatchesToRetain": "10",
    f"{STREAMING}.stateStore.minDeltasForSnapshot": "20",
    f"{STREAMING}.stateStore.maintenanceInterval": "2s",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.sql.ui.retainedExecutions": "20",
}
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
WARM_BATCHES, BATCHES, STEP, HEAP_STEP = 60, 180, 10, 20
HEAPS = 3
HEAP_GROWTH_MAX_BYTES = 15 * MIB
PATIENCE_S = 240.0


@pytest.mark.timeout(600)
def test_the_checkpoint_and_the_heap_are_bounded(
    broker: EmbeddedBroker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options = Options(
        broker.client_config,
        tmp_path / "coordinator",
        new_layout(),
        SETTINGS,
        spark=KEPT,
        ui_port=0,
        replica=False,
    )
    batches: list[int] = []
    files: list[float] = []
    sizes: list[float] = []
    with coordinating(options) as coordinator:
        coordinator.on_batch = lambda batch: batches.append(batch.batch_id)
        with CoordinatorClient(broker.client_config, options.layout, client_id="c") as client:
            member = stable_member(client, "g")
            heaps = []
            for batch in range(WARM_BATCHES, BATCHES + 1, STEP):
                give_up_s = time.monotonic() + PATIENCE_S
                while not batches or batches[-1] < batch:
                    assert time.monotonic() < give_up_s, f"batch {batch} does not come"
                    assert member.heartbeat(1) is ErrorCode.NONE
                if (batch - WARM_BATCHES) % HEAP_STEP == 0:
                    heaps.append(heap_of(coordinator))
                sample = sizes_in(options.folder, batch)
                files.append(float(sample.files.total()))
                sizes.append(float(sample.sizes.total()))
    note(record_property, "files in the checkpoint", f"{min(files):.0f} to {max(files):.0f}")
    assert growth_of_most(files) < 0.5
    assert growth_of_most(sizes) < 0.5
    # Most collections find a running batch, too, 10 to 20 MiB of it, and some do not. So medians count.
    first, last = median(heaps[:HEAPS]), median(heaps[-HEAPS:])
    note(record_property, "heap after a collection", f"{first / MIB:.1f}, then {last / MIB:.1f} MiB")
    assert last - first < HEAP_GROWTH_MAX_BYTES


def heap_of(coordinator: Coordinator) -> int:
    heap = heap_after_collection_bytes(coordinator.jvm_pid)
    assert heap is not None, "this test needs a JDK: jcmd, jstat"
    return heap
