"""What operators see of the replica: the status, the metrics, and whether the coordinator is ready."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cli.run_gateway import metrics_and_checks
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from insight.metrics.service import Metrics
from state.errors import ErrorCode
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.status import Phase, Status, read_status
from tests.e2e.early import answering, pid_of_replica
from tests.e2e.harness import QUICK_SPARK, START_TIMEOUT_S, new_layout, stable_member, wait_until
from tests.e2e.test_metrics import scrape

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@dataclass(frozen=True)
class Seen:
    """A coordinator whose replica answers, from outside."""

    coordinator: Coordinator
    metrics: Metrics

    def status(self) -> Status:
        return read_status(self.coordinator.options.folder / "status.json")

    def ready(self) -> tuple[int, Any]:
        """The answer of /readyz, and its JSON object."""
        try:
            with urllib.request.urlopen(self.metrics.url.replace("/metrics", "/readyz"), timeout=10) as found:
                return found.status, json.load(found)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def sample(self, name: str) -> float:
        """A sample of the replica's metrics."""
        return scrape(self.metrics)[f"group_coordinator_replica_{name}"]

    def wait_for(self, phrase: str) -> None:
        wait_until(lambda: self.status().replica == phrase, f"replica: {phrase}")


@pytest.fixture(scope="module")
def seen(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    options = Options(
        broker.client_config, tmp_path_factory.mktemp("visible"), new_layout(), spark=QUICK_SPARK
    )
    with answering(options) as coordinator:
        with metrics_and_checks(coordinator, None, "127.0.0.1", 0, log_rebalances=False) as metrics:
            seen = Seen(coordinator, metrics)
            seen.wait_for("answering")
            yield seen
        coordinator.stop()
        assert seen.status().replica == "off", "nothing of a stopped coordinator answers"


@contextmanager
def held_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_replica_that_answers_is_seen(seen: Seen) -> None:
    checks = {"coordinator": "ok", "replica": "ok"}
    answering = (200, {"ok": True, "checks": checks, "notes": {"replica": "answering"}})
    # Its process may have said nothing for a second.
    wait_until(lambda: seen.ready() == answering, "ready")
    wait_until(lambda: seen.sample('phase{phase="answering"}') == 1, "the metric")
    assert seen.sample('phase{phase="off"}') == seen.sample("differences_total") == 0
    assert seen.sample("seedings_total") >= 1
    assert 0 <= seen.sample("lead_seconds") < 60
    assert seen.status().alarm is None


def test_a_replica_that_hangs_is_seen_and_the_coordinator_is_ready_without_it(seen: Seen) -> None:
    with held_still(pid_of_replica()):
        phrase = "following: its process has said nothing for more than 1 s"
        seen.wait_for(phrase)
        code, body = seen.ready()
        assert (code, body["checks"]["coordinator"], body["notes"]["replica"]) == (200, "ok", phrase)
        assert seen.sample('phase{phase="following"}') == 1
    seen.wait_for("answering")


def test_counts_go_on_over_the_end_of_its_process(seen: Seen) -> None:
    options = seen.coordinator.options
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        member = stable_member(client, "counted")
        assert member.heartbeat(1) is ErrorCode.NONE
    wait_until(lambda: seen.sample("compared_total") > 0, "early answers are compared")
    seedings = seen.sample("seedings_total")
    counts = [seen.sample("compared_total")]
    said = set()

    def answers_again() -> bool:
        counts.append(seen.sample("compared_total"))
        said.add(seen.status().replica)
        assert seen.ready()[0] == 200
        return seen.sample("seedings_total") > seedings and seen.status().replica == "answering"

    os.kill(pid_of_replica(), signal.SIGKILL)
    wait_until(answers_again, "the replica answers again")
    assert counts == sorted(counts)
    assert said & {"ended: its process ended with -9", "seeding: its seed is made"}


def test_it_is_ready_while_sparks_jvm_starts_again(seen: Seen) -> None:
    """A load balancer must not take a gateway out whose clients are served."""
    restarts = seen.coordinator.spark_restarts
    told = []

    def is_back() -> bool:
        code, body = seen.ready()
        # A machine that stands still stops the replica's answers, too; Spark's end must not.
        assert code == 200 or body["notes"]["replica"].startswith("following: "), body
        told.append(body["notes"].get("coordinator"))
        return seen.coordinator.spark_restarts > restarts and seen.status().phase is Phase.READY

    os.kill(seen.coordinator.jvm_pid, signal.SIGKILL)
    wait_until(is_back, "batches are committed again", START_TIMEOUT_S)
    (first, *_) = [note for note in told if note is not None]
    assert first.startswith("restarting: Spark's JVM has ended")
    assert first.endswith(". The replica answers")
