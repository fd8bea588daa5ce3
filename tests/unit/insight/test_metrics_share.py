"""The metrics of share groups, from the history and the views that the core makes. Rows SM1, SM4."""

from records.codec import encode
from state.kafka.observed.view import view_of as observed_view_of
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records
from tests.harness.scraped import LAYOUT, Scraped

OWN = "group_coordinator_share_group"
KAFKA = "kafka_server_group_coordinator_metrics"

BEGUN = ("topics orders=3", "at 10s", "share A e0", "at 11s", "init watcher partitions[orders 0]")


def scraped(*commands: str) -> Scraped:
    metrics = Scraped()
    metrics.consumer_group("g", *BEGUN, *commands)
    return metrics


def partitions(metrics: Scraped) -> list[float | None]:
    states = ("initializing", "initialized", "deleting")
    return [metrics.value(f"{OWN}_partitions", consumergroup="g", state=state) for state in states]


def test_groups_by_type_and_state() -> None:
    metrics = scraped()
    assert metrics.value(f"{KAFKA}_group_count", protocol="share") == 1
    states = [
        metrics.value(f"{KAFKA}_share_group_count", state=state) for state in ("empty", "stable", "dead")
    ]
    assert states == [0, 1, 0]
    assert metrics.value(f"{KAFKA}_share_group_count", state="assigning") is None, "a share group has no such"


def test_a_rebalance_is_an_epoch_of_a_heartbeat_and_not_of_a_leave() -> None:
    metrics = scraped("at 12s", "share A e2", "share B e0", "share B -1", "at 13s", "share A e3")
    assert metrics.value(f"{KAFKA}_share_group_rebalance_count") == 3, "A joined, it had orders-0, B joined"


def test_partitions_and_open_tasks() -> None:
    metrics = scraped()
    assert partitions(metrics) == [2, 1, 0]
    assert metrics.value(f"{OWN}_open_tasks", consumergroup="g", kind="initialize") == 1
    assert metrics.value(f"{OWN}_oldest_initializing_timestamp_seconds", consumergroup="g") == 10.0
    deleting = scraped("share A -1", "delete admin")
    assert partitions(deleting) == [0, 0, 3]
    tasks = [
        deleting.value(f"{OWN}_open_tasks", consumergroup="g", kind=kind) for kind in ("initialize", "delete")
    ]
    assert tasks == [0, 1]
    assert deleting.value(f"{OWN}_oldest_initializing_timestamp_seconds", consumergroup="g") is None


def test_how_long_the_share_coordinator_took_and_what_it_refused() -> None:
    metrics = scraped("at 12s", "init watcher error=15", "at 14s", "init watcher error=31", "share A e2")
    assert metrics.value(f"{OWN}_initializing_seconds_count") == 1
    assert metrics.value(f"{OWN}_initializing_seconds_sum") == 1.0
    codes = ("COORDINATOR_NOT_AVAILABLE", "CLUSTER_AUTHORIZATION_FAILED")
    assert [metrics.value(f"{OWN}_initialization_failures_total", error_code=code) for code in codes] == [
        2,
        2,
    ]


def test_an_observed_group_has_partitions_and_no_tasks() -> None:
    metrics = Scraped()
    watched = Watched().take(real_records(REAL_OF_OTHERS)[:19])
    for entry in watched.history:
        metrics.metrics_state.apply(LAYOUT.events_topic, entry.group_id.encode(), encode(entry))
    view = encode(observed_view_of(watched.groups["queue"], {}))
    metrics.metrics_state.apply(LAYOUT.groups_topic, b"queue", view)
    assert metrics.value(f"{OWN}_partitions", consumergroup="queue", state="initialized") == 4
    assert metrics.value(f"{OWN}_open_tasks", consumergroup="queue", kind="initialize") is None
    assert metrics.value(f"{OWN}_initializing_seconds_count") == 1


def test_without_share_groups_there_are_none() -> None:
    metrics = Scraped()
    metrics.group("classic", "Stable", "m")
    assert OWN not in metrics.text()
