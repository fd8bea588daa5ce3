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
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.rows.mixed import rounds
from bench.systems import ON_TOPICS, PREFIX, RunningSystems

GROUPS = 100
UNDER_WAY = 16
BATCHES, QUICK_BATCHES = 10_000, 2_000
STEP = 100
# Spark keeps 100 batches, makes a snapshot of the state each 200, and looks each 60 s for what is too old.
# So the size rises for hundreds of batches and falls at once.
WARM_BATCHES = 800
GROWTH_LIMIT = 0.2
_TURN_S = 2.0
_LOG = "spark.log"
_SPARK = "spark"


@dataclass
class Sizes:
    """After `batch`: files and bytes of the coordinator's folder by the name of a part, without the log."""

    batch: int
    files: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    log_bytes: int = 0


def measure(bench: Bench) -> Found:
    """Let batches run, each with some requests."""
    world = bench.new_systems(AT_ONCE_MS).world
    return found_of(bench.load(watch, world, bench.plan))


def watch(world: RunningSystems, plan: Plan) -> list[Sizes]:
    """Sample the folder until the last batch."""
    last = QUICK_BATCHES if plan.is_quick else BATCHES
    with TopicsClient(world.servers, PREFIX, packed=False) as client, world.alone(ON_TOPICS):
        members = client.form([f"checkpoint-{uuid.uuid4()}" for _ in range(GROUPS)])
        records = cycle(rounds(client, members, 8 * GROUPS))
        samples: list[Sizes] = []
        while not samples or samples[-1].batch < last:
            client.closed(records, UNDER_WAY, _TURN_S)
            if world.last_batch() >= (len(samples) + 1) * STEP:
                samples.append(sizes_in(world.folder / "coordinator", world.last_batch()))
                if len(samples) % 5 == 0:
                    say(f"    batch {samples[-1].batch}: {_text(samples[-1])}")
        client.end(members)
    return samples


def sizes_in(folder: Path, batch: int) -> Sizes:
    """Return the files and bytes now. A file that Spark removes meanwhile does not count."""
    found = Sizes(batch)
    for parent, _, names in os.walk(folder):
        below = Path(parent).relative_to(folder).parts
        # Spark's checkpoint has folders of its own; the rest are the files beside it.
        part = "/".join(below[:2]) if below[:1] == (_SPARK,) else "beside Spark's"
        for name in names:
            try:
                size = (Path(parent) / name).stat().st_size
            except OSError:
                continue
            if name == _LOG and not below:
                found.log_bytes = size
                continue
            found.files[part] += 1
            found.sizes[part] += size
    return found


def growth_of_most(values: list[float]) -> float:
    """Return by how much the greatest value of the second half exceeds that of the first, as a part of the
    latter.
    """
    half = len(values) // 2
    return max(values[half:]) / max(values[:half]) - 1


def _text(sample: Sizes) -> str:
    parts = ", ".join(
        f"{part} {files} files {sample.sizes[part] / MIB:.2f} MiB"
        for part, files in sorted(sample.files.items())
    )
    return f"{parts}, log {sample.log_bytes / MIB:.2f} MiB"


def found_of(samples: list[Sizes]) -> Found:
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
        Figure(f"checkpoint, {batches}: files, growth", "%", [100 * growth_of_most(files)], (), "", limit),
        Figure(f"checkpoint, {batches}: size, growth", "%", [100 * growth_of_most(sizes)], (), "", limit),
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
    return Found(figures, [Plot("checkpoint", "The checkpoint's size", "batch", "", series)])
