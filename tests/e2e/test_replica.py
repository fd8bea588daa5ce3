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
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, OwnerRecord
from cli.run_gateway import metrics_and_checks
from clients.barrier import wait_for_views
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import clock_record, encode, pack
from kafka_why.contract.kafka.requests import Heartbeat, TopicMetadata
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase, ServiceStatus
from kafka_why.local_files import FolderError, ServiceFolder
from kafka_why.metrics.service import Metrics
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.protocol import Received
from streaming.query.operator import Operator
from streaming.service import coordinator as service
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.status import read_status
from streaming.service.stored_state.moving import count_unread
from streaming.service.topics import prepare_topics
from tests.e2e.early import answering, answers, pid_of_replica
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    create_topic,
    new_layout,
    stable_member,
    wait_until,
)
from tests.harness.run_command import hold
from tests.spark.log import heartbeat

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

# Nobody who waits for a batch gets an answer sooner than this, on average.
INTERVAL_MS = 2_000
DIFFERS = "differs"
SAMPLE = re.compile(r"^(\w+)(\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """A coordinator whose replica answers, as operators see it."""

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


def test_query_repeats_each_answer_of_the_replica_byte_for_byte(
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


def test_killed_replica_is_reseeded_and_resumes_answering(seen: Seen, client: CoordinatorClient) -> None:
    """Meanwhile the query answers, the coordinator is ready, and counters continue."""
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
    with hold(pid_of_replica()):
        phrase = "following: its process has sent no report for more than 1 s"
        seen.wait_for(phrase)
        code, body = seen.ready()
        assert (code, body["checks"]["coordinator"], body["notes"]["replica"]) == (200, "ok", phrase)
        assert seen.sample('phase{phase="following"}') == 1
    seen.wait_for("answering")


def test_differing_replica_is_reported_and_seeded_again(seen: Seen, client: CoordinatorClient) -> None:
    """The topic, the counters and the alarm keep the difference: only the next test may follow."""
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


def test_forged_clock_record_restarts_only_the_query(seen: Seen, client: CoordinatorClient) -> None:
    """Whoever may write requests may write that, too. The query restarts, and the replica is silent."""
    member, status = stable_member(client, "forged-owner"), seen.coordinator.status
    before_ms = status.current.since_ms
    producer = kafka_clients.producer(seen.coordinator.options.client_config)
    forged = clock_record(0, owner_epoch=10**14)
    producer.send(seen.coordinator.options.layout.requests_topic, value=forged, partition=0).get(timeout=30)
    producer.close()
    assert status.wait_until(lambda now: now.since_ms > before_ms, timeout_s=START_TIMEOUT_S), status.current
    assert status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), status.current
    assert member.heartbeat(1) is ErrorCode.NONE


def test_folder_in_use_is_refused_without_changing_its_status(broker: EmbeddedBroker, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    status.write_bytes(b"of the coordinator that runs")
    in_use = ServiceFolder(tmp_path)
    in_use.lock()
    with pytest.raises(
        FolderError, match=f"in use by the coordinator with process id {os.getpid()} on host "
    ):
        Coordinator(Options(broker.client_config, tmp_path, new_layout())).start()
    in_use.unlock()
    assert status.read_bytes() == b"of the coordinator that runs"


def test_folder_of_another_topic_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout, other = new_layout(), new_layout()
    Checkpoint.at(tmp_path).pin(prepare_topics(broker.client_config, layout))
    with pytest.raises(FolderError) as refused:
        Coordinator(Options(broker.client_config, tmp_path, other)).start()
    changed = f"requests_topic was '{layout.requests_topic}' and is '{other.requests_topic}'"
    assert changed in str(refused.value)
    status = read_status(tmp_path / "status.json")
    assert status.phase is ServicePhase.STOPPED
    assert status.reason.startswith("the start failed: the state in")


def test_deleted_or_recreated_topic_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout = new_layout()
    before = prepare_topics(broker.client_config, layout)
    Checkpoint.at(tmp_path).pin(before)
    with closing(kafka_clients.admin(broker.client_config)) as admin:
        admin.delete_topics([layout.requests_topic])
        wait_until(lambda: layout.requests_topic not in admin.list_topics(), "the end of the topic")
        with pytest.raises(FolderError, match=f"the topic {layout.requests_topic} does not exist any more"):
            Coordinator(Options(broker.client_config, tmp_path, layout)).start()
        assert layout.requests_topic not in admin.list_topics()
    prepare_topics(broker.client_config, layout)
    with pytest.raises(FolderError, match=f"requests_topic_id was '{before.requests_topic_id}' and is"):
        Coordinator(Options(broker.client_config, tmp_path, layout)).start()


def test_batch_of_another_version_is_refused_before_any_write(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout, checkpoint = new_layout(), Checkpoint.at(tmp_path)
    written = OwnerRecord([Epoch(0, {}, [], "0.0.1")])
    checkpoint.create(prepare_topics(broker.client_config, layout), written)
    owner = checkpoint.newest_owner()
    plans = tmp_path / "spark" / "offsets"
    plans.mkdir(parents=True)
    (plans / "0").touch()
    with pytest.raises(FolderError, match=r"batch 0 was planned by version 0\.0\.1 and is not committed"):
        Coordinator(Options(broker.client_config, tmp_path, layout)).start()
    assert (checkpoint.newest_owner(), checkpoint.record()) == (owner, written)


def test_unread_count_has_only_client_requests_after_the_given_offsets(broker: EmbeddedBroker) -> None:
    topic = new_layout().requests_topic
    create_topic(broker.client_config, topic, 3, {})
    request = encode(heartbeat("g", "m"))
    producer = kafka_clients.producer(broker.client_config)
    for partition in (0, 1):
        for key, value in (
            (b"g", request),
            (b"g", request),
            (None, clock_record(1)),
            (b"g", encode(TopicMetadata(group_id="g", topics={}))),
            (b"1", pack([request, request, request])),
            (b"g", b"no request, and answered or dead-lettered like one"),
        ):
            producer.send(topic, key=key, value=value, partition=partition)
    producer.close()
    assert count_unread(broker.client_config, topic, {0: 1, 1: 6, 2: 0}) == {0: 5, 1: 0, 2: 0}
