"""Groups that a replica lists as changed since the last committed batch, and its requests for a batch."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import encode, unpack
from kafka_why.contract.early_answers import lists_changed
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.requests import AlterGroupConfigs, DescribeGroup
from kafka_why.contract.kafka.responses import DescribeGroupResponse, ListedGroup
from streaming.query.output import Output
from streaming.replica import state_machine
from streaming.replica.audit import request_of
from streaming.replica.groups import DecodedLimits
from streaming.replica.state_machine import Record as LogRecord
from streaming.replica.state_machine import StateMachine, listed_group
from tests.harness.coordinated_log import (
    WITH_DELAY,
    answers_in,
    apply_all,
    log_of,
    machine,
    terms,
    with_clock_records,
)
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat

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


@given(st.integers(0, 10_000), st.integers(1, 60), st.sampled_from([0, 15_000, 2**30]))
def test_topic_plus_the_replicas_changed_groups_list_the_current_groups(
    seed: int, records_a_batch: int, max_bytes: int
) -> None:
    """With a log that has members of every protocol, sessions that end, and groups that are deleted."""
    replica = machine(terms(config=WITH_DELAY), limits=DecodedLimits(max_bytes, min_groups=1))
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
    return [*with_clock_records([log.append(at_ms, b"a", encode(ASK), 0)])]


def early(replica: StateMachine, records: list[Record]) -> list[DescribeGroupResponse]:
    for record in records:
        replica.apply(LogRecord(*record))
    values = [value for record in replica.answers.drain() for value in unpack(record.value)]
    return [msgspec.json.decode(v, type=DescribeGroupResponse) for v in values if lists_changed(v)]


def test_replica_answers_a_changed_groups_request_without_an_audit() -> None:
    log, replica = Log(), machine()
    stable, _ = log.stable_member(T0, "a")
    apply_all(replica, with_clock_records(stable))
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


def test_query_answers_for_a_silent_or_overloaded_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    log, replica = Log(), machine()
    replica.is_permitted = False
    assert early(replica, asked(log, T0 + 100)) == []
    replica.is_permitted = True
    monkeypatch.setattr(state_machine, "LISTED_MAX", 0)
    apply_all(replica, with_clock_records(log.stable_member(T0 + 200, "a")[0]))
    assert early(replica, asked(log, T0 + 300)) == []


class QueryOutput(Output):
    """The records that the query writes."""

    def __init__(self) -> None:
        super().__init__(LAYOUT)

    def take(self) -> tuple[set[str | None], set[str | None]]:
        """Return the topics of the records since the last call, and the requests that they answer."""
        for reply_partition in list(self._open_packs):
            self._close_pack(reply_partition)
        rows, self._rows = self._rows, []
        topics = {topic for topic, *_ in rows}
        if self._compacted:
            topics.add(LAYOUT.offsets_topic)
            self._compacted = {}
        values = [value for topic, _, _, value in rows if topic == LAYOUT.responses_topic and value]
        return topics, {request_of(value) for packed in values for value in unpack(packed)}


@given(st.integers(0, 10_000))
def test_replica_awaits_a_batch_for_every_output_except_its_answers(seed: int) -> None:
    replica, query = (machine(terms(config=WITH_DELAY)) for _ in range(2))
    output = QueryOutput()
    for partition in query.partitions.values():
        partition._answers = output  # type: ignore[assignment]
    for record in (record for records in log_of(seed, length=40) for record in records):
        replica.apply(LogRecord(*record))
        query.apply(LogRecord(*record))
        early = answers_in(replica.answers.drain())
        topics, answered = output.take()
        if topics - {LAYOUT.responses_topic} or answered - early.keys():
            assert replica.awaits_batch
        replica.committed(dict.fromkeys(replica.partitions, ALL), ALL)
        assert not replica.awaits_batch


def test_replica_awaits_a_batch_only_for_a_deadline_not_yet_fired() -> None:
    log, replica = Log(), machine()
    stable, member_id = log.stable_member(T0, "a", session_ms=10_000)
    apply_all(replica, with_clock_records(stable))
    assert replica.awaits_batch
    replica.committed({0: ALL}, T0 + 5_000)
    beats = [log.request(T0 + 5_000, heartbeat("a", member_id)), log.request(T0 + 30_000, heartbeat("b", ""))]
    clock_record, beat, *later = with_clock_records(beats)
    apply_all(replica, [clock_record, beat])
    assert not replica.awaits_batch
    apply_all(replica, later)
    assert replica.awaits_batch, "the session has ended"
    replica.committed({0: ALL}, T0 + 15_000)
    assert replica.awaits_batch, "the batch has read the clock record, and fired nothing"
    replica.committed({0: ALL}, T0 + 20_000)
    assert not replica.awaits_batch


def test_replica_awaits_a_batch_after_settings_of_a_missing_group() -> None:
    log, replica = Log(), machine()
    configs: dict[str, str | None] = {"consumer.session.timeout.ms": "50000"}
    request = AlterGroupConfigs(
        group_id="a", correlation_id="c", reply_partition=0, api_version=0, configs=configs
    )
    apply_all(replica, with_clock_records([log.request(T0, request)]))
    assert replica.awaits_batch
