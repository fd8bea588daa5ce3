"""The metrics and Kafka's log sentences of groups that go by epochs, and the sentences of classic groups."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.metrics.service import log_sentence
from kafka_why.observed.view import view_of as observed_view_of
from records.truncation import encode_view
from state.kafka.protocols import view_of
from tests.harness.histories import Recorder
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records
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
    group = recorder.any_group()
    assert group is not None
    metrics = Scraped()
    metrics.metrics_state.apply(LAYOUT.groups_topic, b"g", encode_view(view_of(group), max_bytes))
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
