"""Facts about groups for the tests of the page: views, commits, entries of a played history."""

from textwrap import dedent
from typing import Any

from msgspec.structs import replace

from kafka_why.contract.codec import encode, offset_key
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.lag.definitions import UNKNOWN, LogBounds, Partition, PartitionLag, ownership
from kafka_why.page.fleet import Fleet, GroupFacts
from kafka_why.why.report import Report, report
from tests.harness.histories import Recorder
from tests.harness.scraped import committed

LAYOUT = TopicLayout.named()


def looks(text: str) -> str:
    """Return a golden table as it is printed, without its indentation."""
    return dedent(text).strip("\n")


def view(group_id: str = "g", **fields: Any) -> GroupSnapshot:
    """Return a Stable group without members, in this state since time 0."""
    given: dict[str, Any] = {
        "incarnation": "i",
        "seq": 1,
        "at_ms": 0,
        "state": "Stable",
        "state_timestamp_ms": 0,
        "generation": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader_id": None,
        "members": [],
        "pending_members": [],
        "last_rebalance_at_ms": None,
        "last_rebalance_reason": "",
        "quarantined": None,
    }
    return GroupSnapshot(group_id=group_id, **given | fields)


def member(member_id: str, *held: Partition) -> MemberSnapshot:
    assignment = (
        encode_assignment(Assignment(tuple(TopicPartition(*where) for where in held))) if held else b""
    )
    return MemberSnapshot(
        member_id, None, "worker", "/10.0.0.7", 10_000, 60_000, b"", assignment, rejoined=True
    )


def facts(
    group: GroupSnapshot | None, lags: dict[Partition, PartitionLag] | None = None, *entries: HistoryEntry
) -> GroupFacts:
    owned = UNKNOWN if group is None else ownership(group)
    return GroupFacts("g" if group is None else group.group_id, group, lags or {}, entries, 1, 0, owned)


def lag(records: int | None, committed_ms: int, ms: int | None = None, **fields: Any) -> PartitionLag:
    given = {"stands_since_ms": committed_ms, "records": records, "ms": ms, **fields}
    return PartitionLag(0, committed_ms, **given)


def ends(**of_topics: int) -> dict[Partition, LogBounds]:
    """Return the bounds of partition 0 of each topic, whose log has lost no record."""
    return {(topic, 0): LogBounds(0, end) for topic, end in of_topics.items()}


def played(*commands: str) -> list[HistoryEntry]:
    return [entry for entry in Recorder().play(*commands) if entry.group_id == "g"]


def of_hour(entries: list[HistoryEntry], now_ms: int) -> Report:
    return report("g", entries, now_ms, now_ms - 3_600_000, from_start=False)


def take_view(fleet: Fleet, group: GroupSnapshot, now_ms: int = 0) -> None:
    fleet.apply(LAYOUT.groups_topic, group.group_id.encode(), encode(group), now_ms)


def fleet_of(*groups: GroupSnapshot) -> Fleet:
    fleet = Fleet(LAYOUT)
    for group in groups:
        take_view(fleet, group)
    return fleet


def facts_of(fleet: Fleet, group_id: str = "g") -> GroupFacts:
    found = fleet.facts(group_id)
    assert found is not None
    return found


def take_commit(fleet: Fleet, group_id: str, partition: Partition, offset: int, at_ms: int = 0) -> None:
    value = committed(group_id, *partition, offset, at_ms)
    fleet.apply(LAYOUT.offsets_topic, offset_key(group_id, *partition), value, at_ms)


def take_entries(fleet: Fleet, entries: list[HistoryEntry], now_ms: int, group_id: str = "g") -> None:
    for entry in entries:
        fleet.apply(LAYOUT.events_topic, None, encode(replace(entry, group_id=group_id)), now_ms)
