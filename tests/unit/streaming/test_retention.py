"""The retention of the topics: long enough for new topics, checked for existing ones."""

import pytest

from kafka_why.contract.layout import TopicLayout
from streaming.service.retention import DAY_MS, LeastRetention, least_retentions
from streaming.service.topics import SIGHTINGS_TOPIC, Replication, TopicsError, wanted_settings

LAYOUT = TopicLayout.named("test")
LEAST = LeastRetention(3 * DAY_MS, "something would be gone")
CHANGED_BY = (
    "(kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name test-requests "
    "--add-config retention.bytes=-1)"
)


def test_new_topics_delete_records_only_by_time() -> None:
    least = least_retentions(LAYOUT)
    wanted = {**wanted_settings(LAYOUT), LAYOUT.sightings_topic: SIGHTINGS_TOPIC}
    deleting = {topic: s for topic, (_, s) in wanted.items() if "delete" in s["cleanup.policy"]}
    assert deleting.keys() == least.keys()
    for topic, settings in deleting.items():
        assert settings["retention.bytes"] == "-1", topic
        assert int(settings["retention.ms"]) >= least[topic].ms, topic


TOO_SHORT = "test-requests has retention.ms={}, at least 259200000 is needed: something would be gone"
BY_SIZE = f"test-requests has retention.bytes={{}}, -1 is needed: something would be gone {CHANGED_BY}"


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "problems"),
    [
        (3 * DAY_MS, -1, []),
        (-1, -1, []),
        (3 * DAY_MS - 1, -1, [TOO_SHORT.format(3 * DAY_MS - 1)]),
        (-1, 10**15, [BY_SIZE.format(10**15)]),
        (0, 0, [TOO_SHORT.format(0), BY_SIZE.format(0)]),
    ],
)
def test_early_deletion_by_time_and_by_size_is_a_problem(
    retention_ms: int, retention_bytes: int, problems: list[str]
) -> None:
    found = {"retention.ms": str(retention_ms), "retention.bytes": str(retention_bytes)}
    assert list(LEAST.problems("test-requests", found)) == problems


@pytest.mark.parametrize(
    ("brokers", "factor", "min_in_sync", "expected"),
    [
        (1, None, None, (1, 1)),
        (2, None, None, (2, 1)),
        (3, None, None, (3, 2)),
        (9, None, None, (3, 2)),
        (9, 1, None, (1, 1)),
        (9, 2, None, (2, 1)),
        (9, 5, None, (5, 2)),
        (3, None, 1, (3, 1)),
        (3, None, 3, (3, 3)),
        (9, 5, 3, (5, 3)),
    ],
)
def test_replication_is_three_with_two_in_sync_or_limited_by_brokers(
    brokers: int, factor: int | None, min_in_sync: int | None, expected: tuple[int, int]
) -> None:
    replication = Replication.on(brokers, factor, min_in_sync)
    assert (replication.factor, replication.min_in_sync) == expected


def test_min_insync_replicas_above_the_replication_factor_is_refused() -> None:
    with pytest.raises(TopicsError, match=r"min.insync.replicas=2 is more than the replication factor, 1"):
        Replication.on(1, None, 2)
