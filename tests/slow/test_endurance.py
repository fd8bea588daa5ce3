"""Over a hundred batches the checkpoint and the heap of Spark's JVM are bounded, and clock records are
frequent only while a group has a member.

Spark keeps less here than usual, so that what is kept for ever shows soon. The rows `checkpoint` and
`endurance` of the bench are the same with Spark's usual bounds, thousands of batches and real memory.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

from bench.memory import MIB, heap_after_collection_bytes
from bench.rows.checkpoint import growth_of_most, sizes_in
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from streaming.service.clock.pace import QUIET_S
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from tests.e2e.harness import QUICK_SPARK, Member, coordinating, new_layout, note, stable_member, wait_until

pytestmark = pytest.mark.e2e

STREAMING = "spark.sql.streaming"
KEPT = {
    **QUICK_SPARK,
    f"{STREAMING}.minBatchesToRetain": "5",
    f"{STREAMING}.stateStore.minDeltasForSnapshot": "10",
    f"{STREAMING}.stateStore.maintenanceInterval": "1s",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.sql.ui.retainedExecutions": "10",
}
SETTINGS = {"group.initial.rebalance.delay.ms": "500"}
REST_INTERVAL_MS = 60_000
WARM_BATCHES, BATCHES, STEP, HEAP_STEP = 40, 110, 7, 14
HEAPS = 3
HEAP_GROWTH_MAX_BYTES = 12 * MIB
PATIENCE_S = 240.0


@dataclass
class Endurance:
    """What the checkpoint and the heap of a coordinator came to, batch after batch."""

    coordinator: Coordinator
    member: Member
    files: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    heaps: list[int] = field(default_factory=list)

    def run(self, folder: Path) -> None:
        """Send heartbeats until there were `BATCHES`, and look each few of them."""
        batches: list[int] = []
        self.coordinator.on_batch = lambda batch: batches.append(batch.batch_id)
        for batch in range(WARM_BATCHES, BATCHES + 1, STEP):
            give_up_s = time.monotonic() + PATIENCE_S
            while not batches or batches[-1] < batch:
                assert time.monotonic() < give_up_s, f"batch {batch} does not come"
                assert self.member.heartbeat(1) is ErrorCode.NONE
            if (batch - WARM_BATCHES) % HEAP_STEP == 0:
                self.heaps.append(heap_of(self.coordinator))
            sample = sizes_in(folder, batch)
            self.files.append(float(sample.files.total()))
            self.sizes.append(float(sample.sizes.total()))


@pytest.mark.timeout(600)
def test_the_checkpoint_and_the_heap_are_bounded_and_clock_records_rest_without_members(
    broker: EmbeddedBroker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options = Options(
        broker.client_config,
        tmp_path / "coordinator",
        new_layout(),
        SETTINGS,
        rest_interval_ms=REST_INTERVAL_MS,
        spark=KEPT,
        ui_port=0,
        replica=False,
    )
    with (
        coordinating(options) as coordinator,
        CoordinatorClient(broker.client_config, options.layout, client_id="c") as client,
    ):
        pace = coordinator._pace
        wait_until(pace.is_resting, "the rest before the first member")
        began_s = time.monotonic()
        found = Endurance(coordinator, stable_member(client, "g"))
        assert time.monotonic() - began_s < REST_INTERVAL_MS / 1000, "the initial delay waits for no pause"
        found.run(options.folder)
        time.sleep(2 * QUIET_S)
        assert not pace.is_resting(), "the session of the silent member may end"
        assert found.member.leave() is ErrorCode.NONE
        wait_until(pace.is_resting, "the rest after the last member")
    note(record_property, "files in the checkpoint", f"{min(found.files):.0f} to {max(found.files):.0f}")
    assert growth_of_most(found.files) < 0.5
    assert growth_of_most(found.sizes) < 0.5
    # Most collections find a running batch, too, 10 to 20 MiB of it, and some do not. So medians count.
    first, last = median(found.heaps[:HEAPS]), median(found.heaps[-HEAPS:])
    note(record_property, "heap after a collection", f"{first / MIB:.1f}, then {last / MIB:.1f} MiB")
    assert last - first < HEAP_GROWTH_MAX_BYTES


def heap_of(coordinator: Coordinator) -> int:
    heap = heap_after_collection_bytes(coordinator.jvm_pid)
    assert heap is not None, "this test needs a JDK: jcmd, jstat"
    return heap
