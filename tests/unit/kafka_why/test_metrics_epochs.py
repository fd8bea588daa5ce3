"""The metrics and Kafka's log sentences of groups that go by epochs, and the sentences of classic groups."""

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from pyspark.sql.streaming import StreamingQuery
from structlog.testing import capture_logs

from kafka_why.contract.codec import UNREADABLE, encode, pack
from kafka_why.contract.early_answers import ReplicaId, early_headers, marker_headers
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.service import NO_REPLICA_STATE, NOT_STARTED, PHASES
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.metrics.service import log_sentence
from kafka_why.observed.view import view_of as observed_view_of
from records.truncation import encode_view
from streaming.service.query.batches import ProgressReader
from tests.harness import scraped as harness
from tests.harness.histories import Recorder
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records
from tests.harness.rocketmq_broker import Broker
from tests.harness.scraped import LAYOUT, Scraped

CONSUMER = "group_coordinator_consumer_group"
SHARE = "group_coordinator_share_group"
KAFKA = "kafka_server_group_coordinator_metrics"
TWO_MEMBERS = (
    "topics orders=4",
    "at 0s",
    "A e0",
    "at 4s",
    "B e0",
    "at 5s",
    "A e2",
    "at 6s",
    "A e2 owned[0,1]",
)
SETTLED = (*TWO_MEMBERS, "at 8s", "B e3")
BEGUN = ("topics orders=3", "at 10s", "share A e0", "at 11s", "init watcher partitions[orders 0]")
DELETING = (*BEGUN, "share A -1", "delete admin")
REFUSED = (*BEGUN, "at 12s", "init watcher error=15", "at 14s", "init watcher error=31", "share A e2")
JOINED_AND_LEFT = (*BEGUN, "at 12s", "share A e2", "share B e0", "share B -1", "at 13s", "share A e3")
STREAMS = (
    "config group.streams.initial.rebalance.delay.ms=0 group.streams.assignment.interval.ms=0",
    'topology "0: foo"',
    "topics foo=2",
    "stream A e0",
    "stream B e0",
    "stream B -1",
    "stream A e2",
    "stream A e4",
)
"""Kafka does not count the epoch of the member that leaves."""
QUEUE, COUNTS = {"consumergroup": "queue"}, {"consumergroup": "counts"}
G = {"consumergroup": "g"}


def scraped(*commands: str) -> Scraped:
    """Return the metrics of the group after these commands, beside those of a classic group."""
    metrics = Scraped()
    metrics.consumer_group("g", *commands)
    metrics.group("classic", "Stable", "m")
    return metrics


@pytest.mark.parametrize(
    ("commands", "name", "labels", "value"),
    [
        (SETTLED, f"{CONSUMER}_unsettled_members", G, 0),
        (SETTLED, f"{CONSUMER}_settling_seconds_sum", {}, 4),
        (SETTLED, f"{CONSUMER}_settling_seconds_bucket", {"le": "0.1"}, 1),
        (SETTLED, f"{CONSUMER}_settling_seconds_bucket", {"le": "5.0"}, 2),
        (SETTLED, "group_coordinator_rebalances_total", G, 2),
        (STREAMS, f"{KAFKA}_streams_group_count", {"state": "stable"}, 1),
        (STREAMS, f"{KAFKA}_streams_group_rebalance_count", {}, 2),
        (DELETING, f"{SHARE}_partitions", {**G, "state": "initialized"}, 0),
        (DELETING, f"{SHARE}_partitions", {**G, "state": "deleting"}, 3),
        (DELETING, f"{SHARE}_open_tasks", {**G, "kind": "initialize"}, 0),
        (DELETING, f"{SHARE}_open_tasks", {**G, "kind": "delete"}, 1),
        (DELETING, f"{SHARE}_oldest_initializing_timestamp_seconds", G, None),
        # A joined, it had orders-0, B joined. B's leaving is no rebalance.
        (JOINED_AND_LEFT, f"{KAFKA}_share_group_rebalance_count", {}, 3),
        (REFUSED, f"{SHARE}_initializing_seconds_sum", {}, 1),
        (REFUSED, f"{SHARE}_initialization_failures_total", {"error_code": "COORDINATOR_NOT_AVAILABLE"}, 2),
        (
            REFUSED,
            f"{SHARE}_initialization_failures_total",
            {"error_code": "CLUSTER_AUTHORIZATION_FAILED"},
            2,
        ),
    ],
)
def test_metrics_of_a_group_follow_its_history_and_its_view(
    commands: tuple[str, ...], name: str, labels: dict[str, str], value: float | None
) -> None:
    assert scraped(*commands).value(name, **labels) == value


@pytest.mark.parametrize(("max_bytes", "members"), [(10_000, 2), (1, None)])
def test_members_omitted_from_a_record_are_not_counted_as_zero(max_bytes: int, members: int | None) -> None:
    recorder = Recorder()
    recorder.play(*TWO_MEMBERS)
    metrics = Scraped()
    metrics.metrics_state.apply(LAYOUT.groups_topic, b"g", encode_view(recorder.view(), max_bytes))
    assert metrics.value("kafka_consumergroup_members", **G) == members
    assert metrics.value(f"{CONSUMER}_unsettled_members", **G) == (members and 1)
    assert metrics.value(f"{CONSUMER}_epoch", **G) == 3


@pytest.mark.parametrize(
    ("records", "name", "labels", "value"),
    [
        (41, f"{KAFKA}_group_count", {"protocol": "streams"}, 1),
        (41, f"{KAFKA}_group_count", {"protocol": "consumer"}, 0),
        (41, f"{KAFKA}_streams_group_count", {"state": "notready"}, 1),
        (41, f"{KAFKA}_share_group_rebalance_count", {}, 5),
        (41, f"{KAFKA}_streams_group_rebalance_count", {}, 1),
        (41, f"{CONSUMER}_epoch", COUNTS, 2),
        (19, f"{SHARE}_partitions", {**QUEUE, "state": "initialized"}, 4),
        # The log has no tasks.
        (19, f"{SHARE}_open_tasks", {**QUEUE, "kind": "initialize"}, None),
        (19, f"{SHARE}_initializing_seconds_count", {}, 1),
    ],
)
def test_observed_share_and_streams_groups_have_the_metrics_of_their_types(
    records: int, name: str, labels: dict[str, str], value: float | None
) -> None:
    metrics = Scraped()
    watched = Watched().take(real_records(REAL_OF_OTHERS)[:records])
    for entry in watched.history:
        metrics.metrics_state.apply(LAYOUT.events_topic, entry.group_id.encode(), encode(entry))
    for group_id, group in watched.groups.items():
        view = encode(observed_view_of(group, {}))
        metrics.metrics_state.apply(LAYOUT.groups_topic, group_id.encode(), view)
    assert metrics.value(name, **labels) == value


CLASSIC = Recorder().play("config group.initial.rebalance.delay.ms=0", "join m api=3", "sync m assign=@m:p0")


@pytest.mark.parametrize(
    ("history", "sentences"),
    [
        (
            CLASSIC[-2:],
            [
                "Stabilized group g generation 1 with 1 members",
                f"Assignment received from leader {CLASSIC[-1].leader_id} for group g for generation 1. "
                "The group has 1 members.",
            ],
        ),
        (
            [replace(entry, members=None, assignments=None) for entry in CLASSIC[-2:]],
            [
                "Stabilized group g generation 1",
                f"Assignment received from leader {CLASSIC[-1].leader_id} for group g for generation 1.",
            ],
        ),
        (
            [entry for entry in Recorder().play(*SETTLED) if entry.generation == 3],
            [
                "[GroupId g] Bumped group epoch to 3 (reason: member B subscribes to orders)",
                "[GroupId g] Computed a new target assignment for epoch 3 with 'uniform' assignor",
            ],
        ),
    ],
    ids=["a generation", "one too large to be told in full", "epochs"],
)
def test_changes_are_logged_in_kafkas_sentences(history: list[HistoryEntry], sentences: list[str]) -> None:
    with capture_logs() as logs:
        for entry in history:
            log_sentence(entry)
    assert [line["event"] for line in logs] == sentences
    assert [line.get("leader") for line in logs] == [entry.leader_id for entry in history][: len(logs)]


GOLDEN = Path(__file__).parents[2] / "data" / "metrics_scrape.txt"


@pytest.fixture(scope="module")
def busy() -> Scraped:
    return harness.busy()


def test_every_metric_has_the_expected_type_and_value(busy: Scraped, pytestconfig: pytest.Config) -> None:
    """All but the prose, and the bounds of histograms."""
    lines, kind = [], ""
    for line in busy.text().splitlines():
        if line.startswith("# TYPE"):
            kind = line.split()[-1]
        elif not line.startswith("# HELP") and "_bucket{" not in line:
            lines.append(f"{kind} {line}")
    if pytestconfig.getoption("rewrite"):
        GOLDEN.write_text("\n".join(lines) + "\n")
    assert lines == GOLDEN.read_text().splitlines()


def test_rocketmq_group_metrics_follow_its_end_protocol_change_and_quarantine() -> None:
    scraped, broker = Scraped(), Broker()
    broker.heartbeat("A", "ch1")

    def values() -> tuple[float | None, ...]:
        return (
            scraped.value("group_coordinator_quarantined_groups"),
            scraped.value("group_coordinator_rocketmq_groups", state="online"),
            scraped.value("kafka_consumergroup_members", consumergroup="g"),
        )

    scraped.rocketmq("g", broker)
    assert values() == (0, 1, None)
    broker.group_now().quarantined = "KeyError"
    scraped.rocketmq("g", broker)
    assert values() == (1, 1, None)
    scraped.group("g", "Stable", "m-1")
    assert values() == (0, 0, 1)
    scraped.rocketmq("g", broker)
    assert values() == (1, 1, None)


def test_ended_groups_and_offsets_are_removed_from_metrics() -> None:
    scraped = Scraped()
    scraped.group("orders", "Stable", "m-1")
    scraped.offset("orders", "purchases", 0, 9)
    scraped.entry(1, EntryType.STABLE)
    assert scraped.value("group_coordinator_rebalances_total", consumergroup="orders") == 1
    scraped.offset("orders", "purchases", 0, None)
    scraped.offset("orders", "purchases", 0, None)
    scraped.metrics_state.apply(LAYOUT.groups_topic, b"orders", None)
    assert "orders" not in scraped.text()
    assert scraped.value("kafka_coordinator_group_groupmetadatamanager_numoffsets") == 0


def test_group_metrics_appear_only_after_the_topic_is_read_to_its_end() -> None:
    scraped = Scraped(complete=False)
    scraped.group("orders", "Stable", "m-1")
    assert "numgroups" not in scraped.text()
    assert "orders" not in scraped.text()
    scraped.metrics_state.mark_complete()
    assert scraped.value("kafka_coordinator_group_groupmetadatamanager_numgroups") == 1


def test_replica_metrics_have_one_phase_and_counters_start_at_zero() -> None:
    scraped = Scraped()
    own = "group_coordinator_replica"
    for state in (NO_REPLICA_STATE, NOT_STARTED):
        scraped.replica = state
        phases = {phase: scraped.value(f"{own}_phase", phase=phase) for phase in PHASES}
        assert phases == {phase: phase == state.phase for phase in PHASES}
        for name in ("answers", "compared", "differences", "seedings"):
            assert scraped.value(f"{own}_{name}_total") == 0


def test_answers_are_counted_when_written_by_the_query() -> None:
    scraped, replica = Scraped(), ReplicaId(3, 1)
    answers = pack([encode({"error_code": 0, "type": "Heartbeat"})] * 2)
    for value, headers in (
        (answers, early_headers(replica, 1)),
        (answers, []),
        (answers, None),
        (None, marker_headers(replica)),
    ):
        scraped.metrics_state.apply(LAYOUT.responses_topic, None, value, headers)
    answered = {"type": "Heartbeat", "error_code": "NONE"}
    assert scraped.value("group_coordinator_responses_total", **answered) == 4


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        (LAYOUT.groups_topic, b"\xff", b"{}"),
        (LAYOUT.groups_topic, b"g", b'{"state": 1}'),
        (LAYOUT.offsets_topic, b'["g"]', None),
        (LAYOUT.events_topic, b"g", b"not JSON"),
        (LAYOUT.responses_topic, None, None),
        (LAYOUT.dead_letters_topic, b"", b"[]"),
    ],
)
def test_unreadable_record_raises_and_leaves_metrics_unchanged(
    topic: str, key: bytes | None, value: bytes | None
) -> None:
    scraped = Scraped()
    before = scraped.text()
    with pytest.raises(UNREADABLE):
        scraped.metrics_state.apply(topic, key, value)
    assert scraped.text() == before


def reported(batch_id: int, *, executed: bool = True, dropped: int = 0) -> dict[str, Any]:
    """Return a batch as Spark 4.2 reports it, without the fields that are not read."""
    stages = {"addBatch": 90, "walCommit": 12} if executed else {}
    return {
        "id": "2c4b1e63-0a7c-4e6a-9a43-3d8c1b4d9f10",
        "name": "group-coordinator",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "batchId": batch_id,
        "numInputRows": 8,
        "durationMs": {**stages, "triggerExecution": 120},
        "eventTime": {"watermark": "2026-01-02T03:04:05.250Z", "max": "2026-01-02T03:04:05.400Z"},
        "stateOperators": [{"operatorName": "applyInPandasWithState", "numRowsDroppedByWatermark": dropped}],
        "sources": [{"startOffset": None, "endOffset": {"requests": {"0": 17, "1": 4}}, "numInputRows": 8}],
        "sink": {"numOutputRows": 3},
    }


class JvmProgress:
    """One progress report, as the JVM returns it."""

    def __init__(self, progress: dict[str, Any]) -> None:
        self._json = json.dumps(progress)

    def json(self) -> str:
        return self._json


class Query:
    """The JVM's side of a query; it counts how often all retained reports are requested."""

    def __init__(self) -> None:
        self._jsq = self
        self.batches: list[dict[str, Any]] = []
        self.looks_back = 0

    def lastProgress(self) -> JvmProgress | None:  # noqa: N802 - Spark's name
        return JvmProgress(self.batches[-1]) if self.batches else None

    def recentProgress(self) -> list[JvmProgress]:  # noqa: N802 - Spark's name
        self.looks_back += 1
        return [JvmProgress(batch) for batch in self.batches]

    def run(self, *batches: dict[str, Any]) -> None:
        self.batches += batches


def reading() -> tuple[Query, ProgressReader]:
    query = Query()
    return query, ProgressReader(cast(StreamingQuery, query))


def ids(batches: list[BatchProgress]) -> list[int]:
    return [batch.batch_id for batch in batches]


def test_each_batch_is_reported_once_and_in_order() -> None:
    query, reader = reading()
    assert reader.new_batches() == []
    query.run(reported(0))
    assert ids(reader.new_batches()) == [0]
    assert reader.new_batches() == []
    query.run(reported(1), reported(2), reported(3))
    assert ids(reader.new_batches()) == [1, 2, 3]
    query.run(reported(4))
    assert ids(reader.new_batches()) == [4]
    assert query.looks_back == 1, "only where some went by unseen"


def test_idle_trigger_report_is_not_a_batch() -> None:
    query, reader = reading()
    query.run(reported(7), reported(8, executed=False))
    assert ids(reader.new_batches()) == []
    query.run(reported(8), reported(9, executed=False), reported(9))
    assert ids(reader.new_batches()) == [7, 8, 9]


def test_backlog_counts_unread_records() -> None:
    """A batch that reads all leaves none, and a partition that was cut off counts as none, too."""
    latest = {"requests": {"0": 20, "1": 3, "2": 5}}
    source = {"endOffset": {"requests": {"0": 17, "1": 4}}, "latestOffset": latest}
    batch = msgspec.convert({**reported(1), "sources": [source]}, BatchProgress)
    assert batch.backlog == 3 + 5
    assert msgspec.convert(reported(1), BatchProgress).backlog == 0
