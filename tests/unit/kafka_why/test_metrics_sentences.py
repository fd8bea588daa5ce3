"""Kafka's log sentences, from history entries."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.metrics.service import log_sentence


def event(event_type: EntryType, **fields: Any) -> HistoryEntry:
    given: dict[str, Any] = {
        "seq": 7,
        "at_ms": 1_700_000_000_000,
        "from_state": "Stable",
        "to_state": event_type.value,
        "generation": 4,
        "reason": "why",
        "rule": "T5",
        "cause": "requests-0-9",
    }
    return HistoryEntry(
        version=1, type=event_type, group_id="orders", incarnation="requests-0-1", **given | fields
    )


def logged(entry: HistoryEntry) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        log_sentence(entry)
    return [dict(line) for line in logs]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (["m-1", "m-3"], "Stabilized group orders generation 5 with 2 members"),
        (None, "Stabilized group orders generation 5"),
    ],
)
def test_stabilized_generation_is_logged_in_kafkas_sentence(members: list[str] | None, said: str) -> None:
    entry = event(EntryType.COMPLETING_REBALANCE, generation=5, members=members, leader_id="m-1")
    (line,) = logged(entry)
    assert line["event"] == said
    assert (line["leader"], "waiting_for" in line) == ("m-1", False)


@pytest.mark.parametrize(
    ("assignments", "ending"), [({"m-1": b"a", "m-3": b"b"}, " The group has 2 members."), (None, "")]
)
def test_received_assignment_is_logged_in_kafkas_sentence(
    assignments: dict[str, bytes] | None, ending: str
) -> None:
    entry = event(EntryType.STABLE, generation=5, leader_id="m-1", assignments=assignments)
    (line,) = logged(entry)
    assert line["event"] == f"Assignment received from leader m-1 for group orders for generation 5.{ending}"
