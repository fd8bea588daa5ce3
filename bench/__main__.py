"""Run all measurements and print one table. `--quick` takes fewer samples."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench.asker import Asker
from bench.floor import start_floor
from bench.groups import form_groups
from bench.measure import burst, cpu_share, deadline_lateness, one_at_a_time, percentile, session_pids
from streaming.broker import EmbeddedBroker
from streaming.coordinator import Coordinator, Options
from streaming.layout import Layout
from streaming.logs import configure_logs
from streaming.session import Session
from streaming.status import Phase
from streaming.topics import prepare_topics

RATIO_LINE = 3.5
LATENESS_P50_LINE_S = 1.0
LATENESS_P99_LINE_S = 2.0
BURST_REQUESTS = 20_000
DELAY_MS = 3_000


def main() -> None:
    """Bench everything; the exit code says whether the lines were held."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples, for a first look")
    quick = parser.parse_args().quick
    configure_logs()
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
    ):
        rounds = 40 if quick else 200
        floor = _floor(broker.bootstrap_servers, Path(folder) / "floor-1", rounds)
        figures |= _coordinator(broker.bootstrap_servers, Path(folder) / "coordinator", rounds, quick=quick)
        floor += _floor(broker.bootstrap_servers, Path(folder) / "floor-2", rounds)
    figures |= {"floor p50 ms": percentile(floor, 0.5) * 1e3, "floor p99 ms": percentile(floor, 0.99) * 1e3}
    sys.exit(0 if _report(figures) else 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _floor(bootstrap_servers: str, folder: Path, rounds: int) -> list[float]:
    _say("floor: a stateless Kafka-to-Kafka query")
    layout = Layout.named(folder.name)
    prepare_topics(bootstrap_servers, layout)
    folder.mkdir()
    with Session(log_path=folder / "spark.log") as session:
        query = start_floor(session.spark, bootstrap_servers, layout, str(folder / "spark"))
        asker = Asker(bootstrap_servers, layout)
        group = ("floor", "member", 1)
        one_at_a_time(asker, group, rounds // 4 + 10)  # warm
        took = one_at_a_time(asker, group, rounds)
        asker.close()
        query.stop()
    return took


def _coordinator(bootstrap_servers: str, folder: Path, rounds: int, *, quick: bool) -> dict[str, float]:
    _say("the coordinator")
    layout = Layout.named("coordinator")
    with Coordinator(Options(bootstrap_servers, folder, layout, log_rebalances=False)) as coordinator:
        coordinator.status.wait_for(Phase.READY)
        asker = Asker(bootstrap_servers, layout)
        try:
            return _measure(asker, coordinator, rounds, quick=quick)
        finally:
            asker.close()


def _measure(asker: Asker, coordinator: Coordinator, rounds: int, *, quick: bool) -> dict[str, float]:
    _say("  one at a time")
    formed = form_groups(asker, ["single"])
    group = ("single", *formed["single"])
    one_at_a_time(asker, group, rounds // 4 + 10)  # warm
    took = one_at_a_time(asker, group, rounds)
    figures = {"p50 ms": percentile(took, 0.5) * 1e3, "p99 ms": percentile(took, 0.99) * 1e3}
    _say("  lateness of deadlines")
    late = deadline_lateness(asker, DELAY_MS, 15 if quick else 60)
    figures |= {"late p50 s": percentile(late, 0.5), "late p99 s": percentile(late, 0.99)}
    _say("  idle")
    jvm_session = os.getsid(coordinator.jvm_pid)
    figures["idle Spark cores"] = cpu_share(lambda: session_pids(jvm_session), 15)
    figures["idle driver cores"] = cpu_share(lambda: [os.getpid()], 15)
    for groups in (20, 1_000):
        _say(f"  burst over {groups} groups")
        members = form_groups(asker, [f"burst-{groups}-{i}" for i in range(groups)])
        rates = [burst(asker, members, BURST_REQUESTS) for _ in range(2 if quick else 3)]
        figures[f"burst {groups} groups /s"] = percentile(rates, 0.5)
    return figures


def _report(figures: dict[str, float]) -> bool:
    ratio = figures["p50 ms"] / figures["floor p50 ms"]
    lines = [
        (
            "request -> response, p50",
            f"{figures['p50 ms']:.0f} ms",
            f"floor {figures['floor p50 ms']:.0f} ms",
            None,
        ),
        (
            "request -> response, p99",
            f"{figures['p99 ms']:.0f} ms",
            f"floor {figures['floor p99 ms']:.0f} ms",
            None,
        ),
        ("ratio of p50 to the floor", f"{ratio:.2f}", f"at most {RATIO_LINE}", ratio <= RATIO_LINE),
        (
            "deadline due -> answered, p50",
            f"{figures['late p50 s']:.2f} s",
            f"at most {LATENESS_P50_LINE_S:.0f} s",
            figures["late p50 s"] <= LATENESS_P50_LINE_S,
        ),
        (
            "deadline due -> answered, p99",
            f"{figures['late p99 s']:.2f} s",
            f"at most {LATENESS_P99_LINE_S:.0f} s",
            figures["late p99 s"] <= LATENESS_P99_LINE_S,
        ),
        (f"burst of {BURST_REQUESTS} over 20 groups", f"{figures['burst 20 groups /s']:.0f} /s", "", None),
        (
            f"burst of {BURST_REQUESTS} over 1,000 groups",
            f"{figures['burst 1000 groups /s']:.0f} /s",
            "",
            None,
        ),
        ("idle: Spark and its workers", f"{figures['idle Spark cores']:.2f} cores", "", None),
        ("idle: driver, ticker, this bench", f"{figures['idle driver cores']:.2f} cores", "", None),
    ]
    for what, measured, against, held in lines:
        verdict = "" if held is None else ("held" if held else "NOT HELD")
        print(f"{what:<38}{measured:>12}   {against:<16}{verdict}")
    return all(held is not False for *_, held in lines)


if __name__ == "__main__":
    main()
