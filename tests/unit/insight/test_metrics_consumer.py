"""The metrics of groups of the consumer protocol, from the history and the views that the core makes."""

import pytest

from insight.metrics.sentences import sentence
from records.codec import encode
from records.truncation import encode_view
from state.kafka.history import EntryType
from state.kafka.observed.view import view_of as observed_view_of
from state.kafka.protocols import view_of
from tests.harness.histories import Recorder
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records
from tests.harness.scraped import LAYOUT, Scraped

OWN = "group_coordinator_consumer_group"
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
SETTLED = ("at 8s", "B e3")


def scraped(*commands: str) -> Scraped:
    metrics = Scraped()
    metrics.consumer_group("g", *commands)
    metrics.group("classic", "Stable", "m")
    return metrics


def test_groups_by_protocol_and_state() -> None:
    metrics = scraped(*TWO_MEMBERS)
    counts = {p: metrics.value(f"{KAFKA}_group_count", protocol=p) for p in ("classic", "consumer")}
    assert counts == {"classic": 1, "consumer": 1}
    states = {
        state: metrics.value(f"{KAFKA}_consumer_group_count", state=state)
        for state in ("empty", "assigning", "reconciling", "stable", "dead")
    }
    assert states == {"empty": 0, "assigning": 0, "reconciling": 1, "stable": 0, "dead": 0}
    assert metrics.value("kafka_coordinator_group_groupmetadatamanager_numgroups") == 1
    assert metrics.value("kafka_consumergroup_members", consumergroup="g") == 2


def test_epochs_and_members_that_are_not_at_the_target() -> None:
    metrics = scraped(*TWO_MEMBERS)
    names = ("epoch", "target_assignment_epoch", "unsettled_members")
    assert [metrics.value(f"{OWN}_{name}", consumergroup="g") for name in names] == [3, 3, 1]
    settled = scraped(*TWO_MEMBERS, *SETTLED)
    assert [settled.value(f"{OWN}_{name}", consumergroup="g") for name in names] == [3, 3, 0]
    assert settled.value(f"{OWN}_epoch", consumergroup="classic") is None


@pytest.mark.parametrize(("max_bytes", "members"), [(10_000, 2), (1, None)])
def test_members_that_a_large_record_leaves_out_are_not_counted_as_none(
    max_bytes: int, members: int | None
) -> None:
    recorder = Recorder()
    recorder.play(*TWO_MEMBERS)
    group = recorder.any_group()
    assert group is not None
    metrics = Scraped()
    metrics.metrics_state.apply(LAYOUT.groups_topic, b"g", encode_view(view_of(group), max_bytes))
    assert metrics.value("kafka_consumergroup_members", consumergroup="g") == members
    assert metrics.value(f"{OWN}_unsettled_members", consumergroup="g") == (members and 1)
    assert metrics.value(f"{OWN}_epoch", consumergroup="g") == 3


def test_the_time_until_every_member_has_its_target() -> None:
    metrics = scraped(*TWO_MEMBERS, *SETTLED)
    assert metrics.value(f"{OWN}_settling_seconds_count") == 2
    assert metrics.value(f"{OWN}_settling_seconds_sum") == pytest.approx(4.0)
    assert metrics.value(f"{OWN}_settling_seconds_bucket", le="0.1") == 1
    assert metrics.value(f"{OWN}_settling_seconds_bucket", le="5.0") == 2
    assert metrics.value("group_coordinator_rebalances_total", consumergroup="g") == 2


def test_target_assignments_and_what_they_move() -> None:
    metrics = scraped(*TWO_MEMBERS)
    assert metrics.value(f"{OWN}_target_assignments_total", assignor="uniform") == 2
    assert metrics.value(f"{OWN}_moved_partitions_total") == 2
    assert metrics.value(f"{KAFKA}_consumer_group_rebalance_count") == 2
    assert metrics.value(f"{KAFKA}_group_completed_rebalance_count") == 0, "these are classic rebalances"


def test_sentences_of_the_log() -> None:
    history = Recorder().play(*TWO_MEMBERS, *SETTLED)
    said = [(event.type, text) for event in history if (text := sentence(event)) is not None]
    assert said[2:] == [
        (
            EntryType.GROUP_EPOCH_BUMPED,
            "[GroupId g] Bumped group epoch to 3 (reason: member B subscribes to orders)",
        ),
        (
            EntryType.TARGET_ASSIGNMENT_COMPUTED,
            "[GroupId g] Computed a new target assignment for epoch 3 with 'uniform' assignor",
        ),
    ]


def test_share_and_streams_groups_that_are_observed_have_the_metrics_of_their_types() -> None:
    metrics = Scraped()
    watched = Watched().take(real_records(REAL_OF_OTHERS)[:41])
    for entry in watched.history:
        metrics.metrics_state.apply(LAYOUT.events_topic, entry.group_id.encode(), encode(entry))
    for group_id, group in watched.groups.items():
        metrics.metrics_state.apply(
            LAYOUT.groups_topic, group_id.encode(), encode(observed_view_of(group, {}))
        )
    assert metrics.value(f"{KAFKA}_group_count", protocol="streams") == 1
    assert metrics.value(f"{KAFKA}_group_count", protocol="consumer") == 0
    assert metrics.value(f"{KAFKA}_streams_group_count", state="notready") == 1
    assert metrics.value(f"{KAFKA}_share_group_rebalance_count") == 5
    assert metrics.value(f"{KAFKA}_streams_group_rebalance_count") == 1
    assert metrics.value(f"{OWN}_epoch", consumergroup="counts") == 2


def test_types_that_no_group_has_have_no_metrics() -> None:
    metrics = scraped(*TWO_MEMBERS)
    assert metrics.value(f"{KAFKA}_group_count", protocol="share") is None
    assert metrics.value(f"{KAFKA}_streams_group_count", state="stable") is None
    assert metrics.value(f"{KAFKA}_share_group_rebalance_count") is None
