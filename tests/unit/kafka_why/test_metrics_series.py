"""Bounds of the metrics: clients cannot make series without end, and totals count what has none."""

import re
from collections.abc import Mapping

import pytest
from prometheus_client.samples import Sample

from kafka_why.contract.rocketmq.requests import RegisterProducer
from kafka_why.metrics.series import LABEL_MAX_CHARS, SeriesBounds, first_rows
from records.topic_patterns import compiled
from tests.harness.rocketmq_broker import Broker, of
from tests.harness.scraped import LAYOUT, Scraped

LABELS = re.compile(r'"(?:[^"\\]|\\.)*"')


def crowd(number: int, bounds: SeriesBounds) -> Scraped:
    """Return a coordinator with as many groups of each kind, each with a member, and partitions that wait."""
    scraped = Scraped(with_members=True, bounds=bounds)
    ends = {}
    for i in range(number):
        scraped.group(f"classic-{i}", "Stable", "m-1")
        scraped.consumer_group(f"consumer-{i}", "topics t=4", "A e0", "at 1s", "B e0")
        scraped.consumer_group(
            f"share-{i}", "topics t=2", "at 1s", "share A e0", "init watcher partitions[t 0]"
        )
        broker = Broker()
        for connection in ("ch1", "ch2"):
            broker.heartbeat("shop", connection)
        scraped.rocketmq(f"rocketmq-{i}", broker)
        for group_id in (f"classic-{i}", f"offsets-{i}"):
            scraped.offset(group_id, f"t-{i}", 0, 3)
        ends[f"t-{i}", 0] = 5
    scraped.set_log_ends(1_000, ends)
    return scraped


def with_series(scraped: Scraped, name: str = "kafka_consumergroup_members") -> set[str]:
    return {sample.labels["consumergroup"] for sample in samples(scraped, name)} - {""}


def samples(scraped: Scraped, name: str) -> list[Sample]:
    return [
        sample for family in scraped.registry.collect() if family.name == name for sample in family.samples
    ]


def total(scraped: Scraped, name: str) -> float:
    return sum(sample.value for sample in samples(scraped, name))


def test_number_of_series_does_not_grow_with_the_groups() -> None:
    bounds = SeriesBounds(groups=12)
    few, many = crowd(6, bounds).text(), crowd(12, bounds).text()
    assert LABELS.sub("", few).count("\n") == LABELS.sub("", many).count("\n")


@pytest.mark.parametrize(
    "name",
    [
        "kafka_consumergroup_members",
        "kafka_consumergroup_lag_sum",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
        "kafka_coordinator_group_groupmetadatamanager_numoffsets",
        "kafka_server_group_coordinator_metrics_consumer_group_count",
        "kafka_server_group_coordinator_metrics_group_count",
        "group_coordinator_consumer_group_unsettled_members",
        "group_coordinator_share_group_partitions",
        "group_coordinator_share_group_open_tasks",
        "group_coordinator_rocketmq_groups",
        "group_coordinator_rocketmq_clients",
        "group_coordinator_rocketmq_duplicate_client_ids",
        "rocketmq_consumer_connections",
    ],
)
@pytest.mark.parametrize("groups", [0, 7])
def test_sums_include_groups_without_series(name: str, groups: int) -> None:
    whole = total(crowd(3, SeriesBounds()), name)
    assert whole > 0
    assert total(crowd(3, SeriesBounds(groups=groups)), name) == whole


def test_problems_of_groups_without_series_are_counted_in_a_shared_series() -> None:
    scraped = Scraped(bounds=SeriesBounds(groups=0))
    scraped.group("silent", "Empty", since_ms=1)
    scraped.offset("silent", "t", 0, 3)
    scraped.set_log_ends(200_000, {("t", 0): 5})
    others = {"consumergroup": "", "topic": ""}
    assert scraped.value("group_coordinator_partitions_without_owner", **others) == 1
    assert scraped.value("group_coordinator_stuck_partitions", **others) == 0


def test_the_first_groups_seen_have_series_until_they_end() -> None:
    scraped = Scraped(bounds=SeriesBounds(groups=2))
    for group_id in ("first", "second", "third", "fourth"):
        scraped.group(group_id, "Stable", "m-1")
    assert with_series(scraped) == {"first", "second"}
    scraped.group("first", "Empty")
    assert with_series(scraped) == {"first", "second"}
    scraped.metrics_state.apply(LAYOUT.groups_topic, b"first", None)
    assert with_series(scraped) == {"second", "third"}, "the next one has the free place"
    scraped.group("first", "Stable", "m-1")
    assert with_series(scraped) == {"second", "third"}


def test_groups_matching_the_pattern_get_series_first() -> None:
    scraped = Scraped(bounds=SeriesBounds(groups=2, pattern=compiled("orders|billing.*")))
    for group_ids, chosen in (
        (["junk-1", "junk-2", "reorders"], {"junk-1", "junk-2"}),
        # The last one chosen gives its place.
        (["orders"], {"junk-1", "orders"}),
        # Those that it matches are bounded, too.
        (["billing-1", "billing-2"], {"orders", "billing-1"}),
    ):
        for group_id in group_ids:
            scraped.group(group_id, "Stable", "m-1")
        assert with_series(scraped) == chosen
    assert scraped.value("group_coordinator_groups_without_series") == 4


@pytest.mark.parametrize("group_id", ["", "g" * (LABEL_MAX_CHARS + 1)], ids=["empty", "long"])
def test_group_id_unfit_for_a_label_gets_no_series(group_id: str) -> None:
    scraped = Scraped()
    scraped.group("g" * LABEL_MAX_CHARS, "Stable", "m-1")
    scraped.group(group_id, "Stable", "m-1", "m-2")
    assert with_series(scraped) == {"g" * LABEL_MAX_CHARS}
    assert scraped.value("group_coordinator_groups_without_series") == 1
    assert scraped.value("kafka_consumergroup_members", consumergroup="") == 2
    scraped.metrics_state.apply(LAYOUT.groups_topic, group_id.encode(), None)
    assert scraped.value("group_coordinator_groups_without_series") == 0


def test_group_with_many_partitions_does_not_take_series_of_others() -> None:
    scraped = Scraped(bounds=SeriesBounds(groups=2))
    for partition in reversed(range(100)):
        scraped.offset("hostile", f"t-{partition % 50}", partition, 1)
    for partition in range(5):
        scraped.offset("orders", "purchases", partition, 1)
    scraped.set_log_ends(1_000, {(f"t-{partition % 50}", partition): 2 for partition in range(100)})
    shown: dict[str, list[int]] = {}
    for sample in samples(scraped, "kafka_consumergroup_current_offset"):
        shown.setdefault(sample.labels["consumergroup"], []).append(int(sample.labels["partition"]))
    assert shown["orders"] == [0, 1, 2, 3, 4]
    assert sorted(shown["hostile"]) == list(range(65, 100)), "the first ones"
    assert scraped.value("group_coordinator_partitions_without_series") == 65
    whole = scraped.value("kafka_consumergroup_lag_sum", consumergroup="hostile", topic="t-49")
    assert whole == 2, "also of the partitions without series"
    assert scraped.value("group_coordinator_stuck_partitions", consumergroup="hostile", topic="t-0") is None


def test_member_series_are_bounded_like_partition_series() -> None:
    scraped = Scraped(with_members=True, bounds=SeriesBounds(groups=1))
    members = [f"m-{number:02d}" for number in range(30)]
    scraped.group("orders", "Stable", "m" * (LABEL_MAX_CHARS + 1), *members)
    scraped.offset("orders", "purchases", 0, 1)
    shown = [sample.labels["member_id"] for sample in samples(scraped, "group_coordinator_member_lag")]
    assert shown == members[:20]
    assert scraped.value("group_coordinator_members_without_series") == 11


def test_rocketmq_client_languages_are_bounded_as_labels() -> None:
    scraped, broker = Scraped(), Broker()
    for number in range(50):
        broker.send(RegisterProducer(**of("shop", f"ch{number}"), language=f"LANGUAGE-{number:02d}"))
    broker.send(RegisterProducer(**of("shop", "ch"), language="L" * (LABEL_MAX_CHARS + 1)))
    scraped.rocketmq("sales", broker)
    name = "rocketmq_producer_connections"
    assert len(samples(scraped, name)) == 21
    assert total(scraped, name) == 51
    assert scraped.value(name, language="other", version="other") == 31


@pytest.mark.parametrize(
    ("sizes", "rows_max", "left"),
    [
        ({}, 10, {}),
        ({"a": 3, "b": 4}, 10, {"a": 3, "b": 4}),
        ({"a": 3, "b": 7}, 10, {"a": 3, "b": 7}),
        ({"a": 100, "b": 3, "c": 2}, 10, {"a": 5, "b": 3, "c": 2}),
        ({"a": 100, "b": 100, "c": 100}, 10, {"a": 3, "b": 3, "c": 3}),
        ({"a": 5}, 0, {"a": 0}),
    ],
)
def test_series_are_shared_fairly_between_groups(
    sizes: Mapping[str, int], rows_max: int, left: Mapping[str, int]
) -> None:
    rows = {group_id: list(range(size)) for group_id, size in sizes.items()}
    assert first_rows(rows, rows_max) == {group_id: list(range(size)) for group_id, size in left.items()}
