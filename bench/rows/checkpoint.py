"""The size of the checkpoint over thousands of batches: files and bytes, by the folders in it."""

import os
import uuid
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from bench.load.topics import TopicsClient
from bench.memory import MIB
from bench.report import Figure, Plot, Series, at_most, say
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.rows.mixed import rounds
from bench.systems import ON_TOPICS, PREFIX, RunningSystems

GROUPS = 100
UNDER_WAY = 16  # requests in flight
BATCHES, QUICK_BATCHES = 10_000, 2_000
STEP = 100  # batches from one sample to the next
# Spark keeps 100 batches, writes a snapshot of the state every 200, and removes old files every 60 s. So the
# size rises for hundreds of batches and then falls at once.
WARM_BATCHES = 800
GROWTH_LIMIT = 0.2
_TURN_S = 2.0
_LOG = "spark.log"
_SPARK = "spark"


@dataclass
class Sizes:
    """The files and bytes in the coordinator's folder after `batch`, by part. The log is counted apart."""

    batch: int
    files: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    log_bytes: int = 0


def measure(bench: Bench) -> RowResult:
    """Let batches run, each with some requests."""
    systems = bench.new_systems(NO_DELAY_MS).running
    return result_of(bench.call_in_process(watch, systems, bench.plan))


def watch(systems: RunningSystems, plan: Plan) -> list[Sizes]:
    """Sample the folder until the last batch."""
    last = QUICK_BATCHES if plan.is_quick else BATCHES
    with TopicsClient(systems.servers, PREFIX, packed=False) as client, systems.run_only(ON_TOPICS):
        members = client.form_groups([f"checkpoint-{uuid.uuid4()}" for _ in range(GROUPS)])
        records = cycle(rounds(client, members, number=8 * GROUPS))
        samples: list[Sizes] = []
        while not samples or samples[-1].batch < last:
            client.run_closed_loop(records, UNDER_WAY, _TURN_S)
            if systems.last_batch() >= (len(samples) + 1) * STEP:
                samples.append(sizes_in(systems.folder / "coordinator", systems.last_batch()))
                if len(samples) % 5 == 0:
                    say(f"    batch {samples[-1].batch}: {_text(samples[-1])}")
        client.end_groups(members)
    return samples


def sizes_in(folder: Path, batch: int) -> Sizes:
    """Return the files and bytes now. A file that Spark removes meanwhile does not count."""
    sizes = Sizes(batch)
    for parent, _, names in os.walk(folder):
        path_parts = Path(parent).relative_to(folder).parts
        # Spark's checkpoint has folders of its own; the rest are the files beside it.
        part = "/".join(path_parts[:2]) if path_parts[:1] == (_SPARK,) else "beside Spark's"
        for name in names:
            try:
                size = (Path(parent) / name).stat().st_size
            except OSError:
                continue
            if name == _LOG and not path_parts:
                sizes.log_bytes = size
                continue
            sizes.files[part] += 1
            sizes.sizes[part] += size
    return sizes


def growth_of_most(values: list[float]) -> float:
    """Return the growth from the maximum of the first half to that of the second, as a fraction."""
    half = len(values) // 2
    return max(values[half:]) / max(values[:half]) - 1


def _text(sample: Sizes) -> str:
    parts = ", ".join(
        f"{part} {files} files {sample.sizes[part] / MIB:.2f} MiB"
        for part, files in sorted(sample.files.items())
    )
    return f"{parts}, log {sample.log_bytes / MIB:.2f} MiB"


def result_of(samples: list[Sizes]) -> RowResult:
    """Return the figures and the picture."""
    warm = [sample for sample in samples if sample.batch >= WARM_BATCHES] or samples
    parts = sorted({part for sample in samples for part in sample.files})
    last = samples[-1]
    batches = f"batches {warm[0].batch:,} to {last.batch:,}"
    files = [float(sample.files.total()) for sample in warm]
    sizes = [sample.sizes.total() / MIB for sample in warm]
    limit = at_most(100 * GROWTH_LIMIT)
    log_growth = (last.log_bytes - samples[0].log_bytes) / (last.batch - samples[0].batch)
    figures = [
        Figure(f"checkpoint, {batches}: files", "", files),
        Figure(f"checkpoint, {batches}: size", "MiB", sizes),
        Figure(f"checkpoint, {batches}: files, growth", "%", [100 * growth_of_most(files)], required=limit),
        Figure(f"checkpoint, {batches}: size, growth", "%", [100 * growth_of_most(sizes)], required=limit),
        Figure("checkpoint: log of Spark's JVM, a batch", "B", [log_growth]),
    ]
    figures += [
        Figure(f"checkpoint, {part}: files", "", [float(sample.files[part]) for sample in warm])
        for part in parts
    ]
    x = [float(sample.batch) for sample in samples]
    series = [
        Series("files", x, [float(sample.files.total()) for sample in samples]),
        Series("size in KiB", x, [sample.sizes.total() / 1024 for sample in samples]),
    ]
    return RowResult(figures, [Plot("checkpoint", "The checkpoint's size", "batch", "", series)])
