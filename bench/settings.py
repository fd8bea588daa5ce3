"""Compare settings of the coordinator: variants on one broker take turns, and are paused between their turns.

Each set of variants answers one question. `--list` prints the sets and their variants.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.load.requests import Membership, heartbeat_request
from bench.load.topics import Record, TopicsClient
from bench.report import say
from bench.rows.deadlines import measure_lateness_s
from bench.stats import percentile
from bench.systems import cores_of
from bench.variants import INITIAL_DELAY_MS, RunningVariant, Variant
from embedded.broker import EmbeddedBroker
from kafka_why.cli.output import configure_logs
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.batch_progress import BatchProgress

TCP = {"spark.python.unix.domain.socket.enabled": "false"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
LONG_PLANS = {"spark.sql.ui.explainMode": "formatted"}
SNAPSHOTS = {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "10"}
OPTIMIZING_COMPILER = "-XX:TieredStopAtLevel=4"
OPTIMIZED = {"spark.driver.extraJavaOptions": OPTIMIZING_COMPILER}
SPARKS_DEFAULTS = TCP | COMPILED | LONG_PLANS | SNAPSHOTS | OPTIMIZED
"""Spark's own defaults for all settings that the coordinator changes to shorten a batch."""


def _without(*settings: dict[str, str]) -> dict[str, str]:
    """Return SPARKS_DEFAULTS without these settings."""
    left_out = {key for setting in settings for key in setting}
    return {key: value for key, value in SPARKS_DEFAULTS.items() if key not in left_out}


def _java(options: str) -> dict[str, str]:
    return {"spark.driver.extraJavaOptions": options}


def _spark(**settings: str) -> Variant:
    return Variant({f"spark.{key.replace('_', '.')}": value for key, value in settings.items()})


BATCH = {
    "as-it-is": Variant(),
    "none": Variant(SPARKS_DEFAULTS, is_frozen=False),
    "only-unix-sockets": Variant(_without(TCP), is_frozen=False),
    "only-freeze": Variant(SPARKS_DEFAULTS),
    "only-no-codegen": Variant(_without(COMPILED), is_frozen=False),
    "only-quick-compiler": Variant(_without(OPTIMIZED), is_frozen=False),
    "floor": Variant(is_floor=True),
    "floor-none": Variant(SPARKS_DEFAULTS, is_floor=True),
}
"""Each of the coordinator's settings that shorten a batch, alone."""

LESS_ONE = {
    "as-it-is": Variant(),
    "less-unix-sockets": Variant(TCP),
    "less-freeze": Variant(is_frozen=False),
    "less-no-codegen": Variant(COMPILED),
    "less-quick-compiler": Variant(OPTIMIZED),
    "less-explain-mode": Variant(LONG_PLANS),
    "less-rare-snapshots": Variant(SNAPSHOTS),
    "floor": Variant(is_floor=True),
}
"""All of the coordinator's settings that shorten a batch, except one."""

JVM = {
    "as-it-is": Variant(),
    "optimizing-compiler": Variant(_java(OPTIMIZING_COMPILER)),
    "floor": Variant(is_floor=True),
    "floor-optimizing": Variant(_java(OPTIMIZING_COMPILER), is_floor=True),
}
"""The JVM's compiler."""

TICKS = {f"tick-{ms}": Variant(tick_interval_ms=ms) for ms in (50, 100, 150, 200)} | {
    "floor": Variant(is_floor=True)
}
"""The interval of the coordinator's clock records, which is 100 ms by default."""

IDLE = {
    "as-it-is": Variant(),
    "no-rest": Variant(rest_interval_ms=0),
    "rest-1s": Variant(rest_interval_ms=1_000),
    "rest-5s": Variant(rest_interval_ms=5_000),
    "polling-25": _spark(sql_streaming_pollingDelay="25ms"),
    "polling-50": _spark(sql_streaming_pollingDelay="50ms"),
}
"""The cost of a coordinator without members, with other pauses between its clock records and polls."""

SETS = {"idle": IDLE, "batch": BATCH, "less-one": LESS_ONE, "jvm": JVM, "ticks": TICKS}
VARIANTS = {name: variant for variants in SETS.values() for name, variant in variants.items()}

WARM_UP_ROUNDS = 40
WARM_AGAIN_ROUNDS = 4
IDLE_S = 3.0
IDLE_TURN_S = 10.0
# Some seconds after its start, a coordinator without members writes fewer clock records ("rest").
IDLE_WARM_UP_S = 15.0
IDLE_WARM_AGAIN_S = 3.0
ROW = "{:<22}{:>14}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>14}{:>12}"
STAGES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


@dataclass
class Samples:
    """The samples of one variant."""

    took_s: list[float] = field(default_factory=list)  # from request to answer
    late_s: list[float] = field(default_factory=list)  # by which deadlines were late
    batches: list[BatchProgress] = field(default_factory=list)
    cores: list[float] = field(default_factory=list)  # of Spark and the service, while members send nothing


def compare_idle(variants: dict[str, Variant], folder: Path, turns: int) -> dict[str, tuple[float, float]]:
    """Return for each variant, without groups, the median cores of the variant and of the broker."""
    cores: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with _started(variants, folder) as (broker, started):
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for variant in started:
                with variant.awake():
                    time.sleep(IDLE_WARM_UP_S if turn == 0 else IDLE_WARM_AGAIN_S)
                    with ThreadPoolExecutor() as thread:
                        brokers = thread.submit(cores_of, broker.pid or 0, IDLE_TURN_S)
                        own = cores_of(variant.pid, IDLE_TURN_S)
                    cores[variant.name].append((own, brokers.result()))
    return {
        name: (percentile([own for own, _ in turns], 0.5), percentile([brokers for _, brokers in turns], 0.5))
        for name, turns in cores.items()
    }


def idle_table(cores: dict[str, tuple[float, float]]) -> str:
    """Return the table of cores used without members."""
    lines = [f"{'cores used without members':<28}{'Spark and service':>18}{'broker':>8}"]
    return "\n".join(
        [*lines, *(f"{name:<28}{own:>18.2f}{broker:>8.2f}" for name, (own, broker) in cores.items())]
    )


class MeasuredVariant:
    """A variant under measurement, with its client."""

    def __init__(self, running: RunningVariant, variant: Variant, client_config: ClientConfig) -> None:
        self.running = running
        self.samples = Samples()
        self._is_floor = variant.is_floor
        self._client_config = client_config
        with running.awake(), self._client() as client:
            member = Membership("floor", "member", 1) if self._is_floor else client.form_groups(["single"])[0]
            (self._heartbeat,) = client.records([heartbeat_request(member)])
            one_at_a_time(client, self._heartbeat, WARM_UP_ROUNDS)

    def _client(self) -> TopicsClient:
        return TopicsClient(str(self._client_config), self.running.name, packed=False)

    def take_turn(self, rounds: int, deadlines: int) -> None:
        """Let the variant run for one turn, and add its samples."""
        with self.running.awake(), self._client() as client:
            one_at_a_time(client, self._heartbeat, WARM_AGAIN_ROUNDS)
            self.running.batches()  # those before the samples do not count
            self.samples.took_s += one_at_a_time(client, self._heartbeat, rounds)
            self.samples.batches += self.running.batches()
            if deadlines and not self._is_floor:
                self.samples.late_s += measure_lateness_s(client, deadlines, INITIAL_DELAY_MS)
            self.samples.cores.append(cores_of(self.running.pid, IDLE_S))


def one_at_a_time(client: TopicsClient, record: Record, rounds: int) -> list[float]:
    """Send requests at random moments, and return the seconds from each to its response."""
    waits, took_s = Random(7), []
    for _ in range(rounds):
        took_s.append(client.time_one(record))
        time.sleep(waits.uniform(0, 0.2))
    return took_s


def main() -> None:
    """Measure and print the table."""
    args = _parser().parse_args()
    if args.list:
        print("\n".join(f"{name}: {' '.join(variants)}" for name, variants in SETS.items()))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    configure_logs()
    variants = dict(SETS[args.set]) if not args.variants else {n: VARIANTS[n] for n in args.variants}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if args.idle or variants == IDLE:
            print(idle_table(compare_idle(variants, Path(folder), args.turns)))
        else:
            print(table(compare(variants, Path(folder), args.turns, args.rounds, args.deadlines)))


@contextmanager
def _started(
    variants: dict[str, Variant], folder: Path
) -> Iterator[tuple[EmbeddedBroker, list[RunningVariant]]]:
    """Start a broker, and all variants on it, paused."""
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        started = []
        for name, variant in variants.items():
            say(f"starting {name}")
            started.append(RunningVariant(name, variant, broker.client_config, folder / name))
            stack.callback(started[-1].stop)
        yield broker, started


def compare(
    variants: dict[str, Variant], folder: Path, turns: int, rounds: int, deadlines: int
) -> dict[str, Samples]:
    """Measure all variants in `turns` turns of `rounds` requests and `deadlines` deadlines each."""
    with _started(variants, folder) as (broker, started):
        measured = [MeasuredVariant(v, variants[v.name], broker.client_config) for v in started]
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for variant in measured:
                variant.take_turn(rounds, deadlines)
            say(table({variant.running.name: variant.samples for variant in measured}))
        return {variant.running.name: variant.samples for variant in measured}


def table(samples: dict[str, Samples]) -> str:
    """Return the table. Ratios are to the first variant. The times of batches are medians in ms."""
    head = ROW.format(
        "variant", "answer p50/p99", "ratio", "batch", "updates", "timeouts", "commit", "planning",
        "late p50/p99", "idle cores",
    )  # fmt: skip
    first_s = percentile(next(iter(samples.values())).took_s, 0.5)
    rows = [_row(name, variant_samples, first_s) for name, variant_samples in samples.items()]
    return "\n".join([head, *rows, "", _stages(samples)])


def _row(name: str, samples: Samples, first_s: float) -> str:
    states = [operator for batch in samples.batches for operator in batch.state_operators]
    return ROW.format(
        name,
        f"{percentile(samples.took_s, 0.5) * 1e3:.0f}/{percentile(samples.took_s, 0.99) * 1e3:.0f}",
        f"{percentile(samples.took_s, 0.5) / first_s:.2f}",
        f"{_median([batch.total_ms for batch in samples.batches])}",
        _median([state.all_updates_time_ms for state in states]),
        _median([state.all_removals_time_ms for state in states]),
        _median([state.commit_time_ms for state in states]),
        _median([batch.duration_ms.get("queryPlanning", 0) for batch in samples.batches]),
        f"{percentile(samples.late_s, 0.5):.2f}/{percentile(samples.late_s, 0.99):.2f}"
        if samples.late_s
        else "",
        f"{percentile(samples.cores, 0.5):.2f}",
    )


def _stages(samples: dict[str, Samples]) -> str:
    """Return the mean ms of each stage of a batch."""
    lines = ["{:<22}".format("mean ms of a batch") + "".join(f"{stage:>15}" for stage in STAGES)]
    for name, variant_samples in samples.items():
        sums: dict[str, int] = defaultdict(int)
        for batch in variant_samples.batches:
            for stage, ms in batch.duration_ms.items():
                sums[stage] += ms
        means = (f"{sums[stage] / max(len(variant_samples.batches), 1):>15.1f}" for stage in STAGES)
        lines.append(f"{name:<22}" + "".join(means))
    return "\n".join(lines)


def _median(values: list[int]) -> str:
    return f"{percentile([float(value) for value in values], 0.5):.0f}" if values else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.settings", description=__doc__)
    parser.add_argument(
        "variants", nargs="*", choices=[[], *VARIANTS], help="the first is what others compare to"
    )
    parser.add_argument("--set", choices=SETS, default="batch", help="a set of variants (default: batch)")
    parser.add_argument(
        "--idle", action="store_true", help="no members and no requests; measure the cores used"
    )
    parser.add_argument("--list", action="store_true", help="print the sets and their variants")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20, help="requests in each turn")
    parser.add_argument("--deadlines", type=int, default=0, help="deadlines in each turn")
    return parser


if __name__ == "__main__":
    main()
