"""Records on the topics: the coordinator compared with the floor, a Spark query that only copies records."""

import os
from pathlib import Path

from bench.asker import Asker
from bench.floor import start_floor
from bench.groups import form_groups
from bench.measure import burst, cpu_share, deadline_lateness, one_at_a_time, percentile, session_pids
from bench.report import Figure, Table, say
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from streaming.query.session import Session
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase
from streaming.service.topics import prepare_topics

RATIO_LINE = 3.5
LATENESS_P50_LINE_S = 1.0
LATENESS_P99_LINE_S = 2.0
BURST_REQUESTS = 20_000
DELAY_MS = 3_000
IDLE_S = 15


def measure_topics(folder: Path, *, quick: bool) -> Table:
    """Measure the floor before and after the coordinator, so that other load on the machine affects both."""
    rounds = 40 if quick else 200
    with EmbeddedBroker(folder / "broker") as broker:
        floor = _floor(broker.bootstrap_servers, folder / "floor-1", rounds)
        took, others = _coordinator(broker.bootstrap_servers, folder / "coordinator", rounds, quick=quick)
        floor += _floor(broker.bootstrap_servers, folder / "floor-2", rounds)
    p50, p99 = (
        Figure(
            f"request to response, one at a time, p{q}",
            "ms",
            percentile(took, q / 100) * 1e3,
            percentile(floor, q / 100) * 1e3,
            ratio_at_most=RATIO_LINE if q == 50 else None,
        )
        for q in (50, 99)
    )
    return Table("records on the topics", "floor", [p50, p99, *others])


def _floor(bootstrap_servers: str, folder: Path, rounds: int) -> list[float]:
    say("floor: a stateless Kafka-to-Kafka query")
    layout = TopicLayout.named(folder.name)
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


def _coordinator(
    bootstrap_servers: str, folder: Path, rounds: int, *, quick: bool
) -> tuple[list[float], list[Figure]]:
    say("the coordinator")
    layout = TopicLayout.named("coordinator")
    with Coordinator(Options(bootstrap_servers, folder, layout)) as coordinator:
        coordinator.status.wait_for(Phase.READY)
        asker = Asker(bootstrap_servers, layout)
        try:
            took = _one_at_a_time(asker, rounds)
            deadlines = _deadlines(asker, 15 if quick else 60)
            idle = _idle(coordinator)
            return took, [*deadlines, *_bursts(asker, 2 if quick else 3), *idle]
        finally:
            asker.close()


def _one_at_a_time(asker: Asker, rounds: int) -> list[float]:
    say("  one at a time")
    formed = form_groups(asker, ["single"])
    group = ("single", *formed["single"])
    one_at_a_time(asker, group, rounds // 4 + 10)  # warm
    return one_at_a_time(asker, group, rounds)


def _deadlines(asker: Asker, rounds: int) -> list[Figure]:
    say("  lateness of deadlines")
    late = deadline_lateness(asker, DELAY_MS, rounds)
    return [
        Figure("deadline due to response, p50", "s", percentile(late, 0.5), at_most=LATENESS_P50_LINE_S),
        Figure("deadline due to response, p99", "s", percentile(late, 0.99), at_most=LATENESS_P99_LINE_S),
    ]


def _idle(coordinator: Coordinator) -> list[Figure]:
    say("  idle")
    jvm_session = os.getsid(coordinator.jvm_pid)
    spark = cpu_share(lambda: session_pids(jvm_session), IDLE_S)
    driver = cpu_share(lambda: [os.getpid()], IDLE_S)
    return [
        Figure("idle: Spark and its workers", "cores", spark),
        Figure("idle: driver, ticker, this bench", "cores", driver),
    ]


def _bursts(asker: Asker, repeats: int) -> list[Figure]:
    figures = []
    for groups in (20, 1_000):
        say(f"  burst over {groups} groups")
        members = form_groups(asker, [f"burst-{groups}-{i}" for i in range(groups)])
        rates = [burst(asker, members, BURST_REQUESTS) for _ in range(repeats)]
        figures.append(
            Figure(f"burst of {BURST_REQUESTS:,} over {groups:,} groups", "/s", percentile(rates, 0.5))
        )
    return figures
