"""The replica on a real broker: it answers early, the query confirms it, and its end harms nobody. Operators
see it: in the status, the metrics, and whether the coordinator is ready. The query's step has a planted bug
that the replica's has not, for heartbeats of the group `DIFFERS`.
"""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest

from cli.run_gateway import metrics_and_checks
from clients.coordinator_client import CoordinatorClient, wait_for_views
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import clock_record
from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase, ServiceStatus
from kafka_why.metrics.service import Metrics
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.protocol import Received
from streaming.query.operator import Operator
from streaming.service import coordinator as service
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.status import read_status
from tests.e2e.early import answering, answers, pid_of_replica
from tests.e2e.harness import QUICK_SPARK, START_TIMEOUT_S, new_layout, stable_member, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

# Nobody who waits for a batch gets an answer sooner than this, on average.
INTERVAL_MS = 2_000
DIFFERS = "differs"
SAMPLE = re.compile(r"^(\w+)(\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """A coordinator whose replica answers, from outside."""

    coordinator: Coordinator
    metrics: Metrics

    def status(self) -> ServiceStatus:
        return read_status(self.coordinator.options.folder / "status.json")

    def ready(self) -> tuple[int, Any]:
        """Return the answer of /readyz, and its JSON object."""
        try:
            with urllib.request.urlopen(self.metrics.url.replace("/metrics", "/readyz"), timeout=10) as found:
                return found.status, json.load(found)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def sample(self, name: str) -> float:
        """Return a sample of the replica's metrics."""
        return self.scrape()[f"group_coordinator_replica_{name}"]

    def scrape(self) -> dict[str, float]:
        """Return the samples, each by its name and labels as the text has them."""
        with urllib.request.urlopen(self.metrics.url, timeout=10) as response:
            text = response.read().decode()
        return {f"{name}{labels}": float(value) for name, labels, value in SAMPLE.findall(text)}

    def wait_for(self, phrase: str) -> None:
        wait_until(lambda: self.status().replica == phrase, f"replica: {phrase}")


def differing_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step. Heartbeats of `DIFFERS` are answered in another way."""
    effects = step(group, group_id, event, now_ms, config)
    if group_id != DIFFERS or not isinstance(event, Received) or not isinstance(event.request, Heartbeat):
        return effects
    (reply,) = effects.replies
    other = msgspec.structs.replace(reply.response, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return msgspec.structs.replace(effects, replies=[msgspec.structs.replace(reply, response=other)])


@pytest.fixture(scope="module")
def seen(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    options = Options(
        client_config=broker.client_config,
        folder=tmp_path_factory.mktemp("replica"),
        layout=new_layout(),
        spark=QUICK_SPARK,
        settings={"group.initial.rebalance.delay.ms": "0"},
        batch_interval_ms=INTERVAL_MS,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "Operator", partial(Operator, step=differing_step))
        with answering(options) as coordinator:
            with metrics_and_checks(coordinator, [], "127.0.0.1", 0, log_rebalances=False) as metrics:
                metrics.follow()
                seen = Seen(coordinator, metrics)
                seen.wait_for("answering")
                yield seen
            coordinator.stop()
            assert seen.status().replica == "off", "nothing of a stopped coordinator answers"


@pytest.fixture
def coordinator(seen: Seen) -> Coordinator:
    return seen.coordinator


@pytest.fixture
def client(coordinator: Coordinator) -> Iterator[CoordinatorClient]:
    options = coordinator.options
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        yield client


def test_query_repeats_each_early_answer_with_the_same_bytes(
    broker: EmbeddedBroker, seen: Seen, coordinator: Coordinator, client: CoordinatorClient
) -> None:
    member = stable_member(client, "early")

    def are_early() -> bool:
        """While the replica stands still, the query answers."""
        assert member.heartbeat(1) is ErrorCode.NONE
        return coordinator.replica().answers >= 30

    wait_until(are_early, "early answers")
    wait_for_views(client)
    early, of_query = answers(broker.client_config, coordinator.options.layout)
    assert len(early) >= 20
    assert early == {request: of_query[request] for request in early}
    wait_until(lambda: coordinator.replica().compared >= len(early), "the audit has compared all of them")
    assert coordinator.replica().differences == 0
    stable = "kafka_coordinator_group_groupmetadatamanager_numgroupsstable"
    wait_until(lambda: seen.scrape().get(stable, 0) > 0, "the metrics have the group")


def test_killed_replica_is_seeded_again_and_resumes_answering(seen: Seen, client: CoordinatorClient) -> None:
    """Meanwhile the query answers, the coordinator is ready, and counts go on."""
    member = stable_member(client, "killed")
    wait_until(lambda: seen.sample("compared_total") > 0, "early answers are compared")
    seedings = seen.sample("seedings_total")
    counts = [seen.sample("compared_total")]

    def answers_again() -> bool:
        counts.append(seen.sample("compared_total"))
        assert seen.ready()[0] == 200
        return seen.sample("seedings_total") > seedings and seen.status().replica == "answering"

    os.kill(pid_of_replica(), signal.SIGKILL)
    assert member.heartbeat(1) is ErrorCode.NONE, "the query answers"
    wait_until(answers_again, "the replica answers again")
    assert counts == sorted(counts)
    replica = seen.coordinator.replica
    answered = replica().answers

    def answers_early() -> bool:
        assert member.heartbeat(1) is ErrorCode.NONE
        return replica().answers > answered

    wait_until(answers_early, "an early answer")
    assert replica().differences == 0


@contextmanager
def held_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_answering_replica_is_shown_in_readiness_metrics_and_status(seen: Seen) -> None:
    checks = {"coordinator": "ok", "replica": "ok"}
    answering = (200, {"ok": True, "checks": checks, "notes": {"replica": "answering"}})
    # Its process may have said nothing for a second.
    wait_until(lambda: seen.ready() == answering, "ready")
    wait_until(lambda: seen.sample('phase{phase="answering"}') == 1, "the metric")
    assert seen.sample('phase{phase="off"}') == seen.sample("differences_total") == 0
    assert seen.sample("seedings_total") >= 1
    assert 0 <= seen.sample("lead_seconds") < 60
    assert seen.status().alarm is None


def test_hung_replica_is_detected_and_coordinator_stays_ready(seen: Seen) -> None:
    with held_still(pid_of_replica()):
        phrase = "following: its process has sent no report for more than 1 s"
        seen.wait_for(phrase)
        code, body = seen.ready()
        assert (code, body["checks"]["coordinator"], body["notes"]["replica"]) == (200, "ok", phrase)
        assert seen.sample('phase{phase="following"}') == 1
    seen.wait_for("answering")


def test_difference_is_detected_and_the_replica_seeded_again(seen: Seen, client: CoordinatorClient) -> None:
    """The difference stays on the topic, in the counts and in the alarm: only the next test follows."""
    seen.wait_for("answering")
    replica, status = seen.coordinator.replica, seen.coordinator.status
    same, differs = stable_member(client, "same"), stable_member(client, DIFFERS)
    assert same.heartbeat(1) is ErrorCode.NONE
    assert replica().differences == 0
    seedings = replica().seedings
    # The early answer is the first, if the replica does not stand still.
    wait_until(lambda: differs.heartbeat(1) is ErrorCode.NONE, "an early answer")
    wait_until(lambda: replica().differences == 1, "the audit finds it")
    wait_until(lambda: "in another way than the query" in (status.current.alarm or ""), "the alarm")
    wait_until(lambda: replica().seedings > seedings, "the replica is seeded anew")
    assert same.heartbeat(1) is ErrorCode.NONE


def test_clock_record_without_a_claim_ends_no_replica(seen: Seen, client: CoordinatorClient) -> None:
    """Whoever may write requests may write that too. The query begins again, and the replica is silent."""
    member, status = stable_member(client, "forged-owner"), seen.coordinator.status
    before_ms = status.current.since_ms
    producer = kafka_clients.producer(seen.coordinator.options.client_config)
    forged = clock_record(0, owner_epoch=10**14)
    producer.send(seen.coordinator.options.layout.requests_topic, value=forged, partition=0).get(timeout=30)
    producer.close()
    assert status.wait_until(lambda now: now.since_ms > before_ms, timeout_s=START_TIMEOUT_S), status.current
    assert status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), status.current
    assert member.heartbeat(1) is ErrorCode.NONE
