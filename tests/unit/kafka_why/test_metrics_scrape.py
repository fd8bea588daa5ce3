"""The text of a scrape after records have been fed in; tests/data contains its expected types and values."""

from pathlib import Path

import pytest

from kafka_why.contract.codec import UNREADABLE, encode, pack
from kafka_why.contract.early_answers import ReplicaId, early_headers, marker_headers
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.service import NO_REPLICA_STATE, NOT_STARTED, PHASES
from tests.harness import scraped as harness
from tests.harness.rocketmq_broker import Broker
from tests.harness.scraped import LAYOUT, Scraped

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "data" / "metrics_scrape.txt"


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
    scraped.metrics_state.complete()
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
    assert scraped.metrics_state.numbers().counts.answers == {("Heartbeat", "NONE"): 4}


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
