"""Which groups a replica lists as changed since the last committed batch."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import encode, unpack
from kafka_why.contract.early_answers import lists_changed
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.kafka.responses import DEAD, DescribeGroupResponse, ListedGroup
from streaming.replica import state_machine
from streaming.replica.state_machine import Record as LogRecord
from streaming.replica.state_machine import StateMachine, listed_group
from tests.harness.replica_log import WITH_DELAY, apply_all, log_of, machine, owned, terms
from tests.spark.log import T0, Log, Record

ALL = 2**62
ASK = DescribeGroup(
    group_id="a",
    correlation_id="list",
    reply_partition=0,
    api_version=5,
    waits_for_views=True,
    lists_changed=True,
)


def listing(replica: StateMachine) -> dict[str, ListedGroup]:
    """Return what a list shows now."""
    found = {}
    for groups in (partition.groups for partition in replica.partitions.values()):
        for group_id in [*groups._entries, *groups._decoded]:
            group = listed_group(group_id, groups.decoded(group_id).timeline.group)
            if group.state != DEAD:
                found[group_id] = group
    return found


def changes(replica: StateMachine) -> dict[str, ListedGroup]:
    found: dict[str, ListedGroup] = {}
    for partition in replica.partitions.values():
        found |= {group.group_id: group for group in partition.changed_groups() or ()}
    return found


@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from([1, 3, 4_000]))
def test_topic_and_changed_groups_together_list_the_current_groups(
    seed: int, records_a_batch: int, decoded_max: int
) -> None:
    """With a log that has members of every protocol, sessions that end, and groups that are deleted."""
    replica = machine(terms(config=WITH_DELAY), decoded_max=decoded_max)
    topic: dict[str, ListedGroup] = {}
    for number, record in enumerate(record for records in log_of(seed) for record in records):
        replica.apply(LogRecord(*record))
        if number % records_a_batch == 0:
            topic = listing(replica)
            replica.committed(dict.fromkeys(replica.partitions, ALL), ALL)
            assert changes(replica) == {}
        elif number % 5 == 0:
            both = topic | changes(replica)
            there = {group_id: group for group_id, group in both.items() if group.state != DEAD}
            assert there == listing(replica)


def asked(log: Log, at_ms: int) -> list[Record]:
    """Return a request for the changed groups of partition 0."""
    return [*owned([log.append(at_ms, b"a", encode(ASK), 0)])]


def early(replica: StateMachine, records: list[Record]) -> list[DescribeGroupResponse]:
    for record in records:
        replica.apply(LogRecord(*record))
    values = [value for record in replica.answers.drain() for value in unpack(record.value)]
    return [msgspec.json.decode(v, type=DescribeGroupResponse) for v in values if lists_changed(v)]


def test_a_request_for_the_changed_groups_is_answered_early_and_is_not_audited() -> None:
    log, replica = Log(), machine()
    stable, _ = log.stable_member(T0, "a")
    apply_all(replica, owned(stable))
    for record in asked(log, T0 + 100):
        replica.apply(LogRecord(*record))
    (appended,) = replica.answers.drain()
    assert appended.answers == {}, "the query answers something else"
    (value,) = unpack(appended.value)
    answer = msgspec.json.decode(value, type=DescribeGroupResponse)
    assert answer.correlation_id == "list"
    assert answer.changed == [ListedGroup("a", "Stable", "consumer", "classic")]
    replica.committed({0: ALL}, ALL)
    (answer,) = early(replica, asked(log, T0 + 200))
    assert answer.changed == []


def test_silent_replica_or_many_changes_are_left_to_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    log, replica = Log(), machine()
    replica.is_permitted = False
    assert early(replica, asked(log, T0 + 100)) == []
    replica.is_permitted = True
    monkeypatch.setattr(state_machine, "LISTED_MAX", 0)
    apply_all(replica, owned(log.stable_member(T0 + 200, "a")[0]))
    assert early(replica, asked(log, T0 + 300)) == []
