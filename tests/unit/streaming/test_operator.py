"""The operator's call as Spark makes it, but without Spark: a real GroupState of PySpark, frames by hand."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.folder import KnownOutage
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, AnyRequest, step
from state.inputs import Failed, Outage, Received
from state.kafka.group import Group
from state.kafka.member_id import new_member_id
from state.rocketmq.requests import ConnectionClosed
from streaming.query import output as output_module
from streaming.query.operator import ConfigEpoch, OperatorError
from tests.harness.operator_call import CONFIG, OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, heartbeat, join, release, sync


def group_in(state: SparkGroupState, group_id: str = "g") -> Group:
    group = codec.decode(group_id, *state.get)[group_id]
    assert isinstance(group, Group)
    return group


def stable_state(log: Log) -> tuple[tuple[int, bytes], str]:
    """The state row of group g with one member at T0, and the member's id."""
    records, member_id = log.stable_member(T0, "g")
    state = spark_state()
    call(records, state)
    return tuple(state.get), member_id


def test_rows_are_applied_in_the_logs_order_however_they_come() -> None:
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    records += [log.request(T0 + n, heartbeat("g", member_id)) for n in range(1, 30)]
    in_order = spark_state()
    expected = call(records, in_order)
    for chunks in (1, 3, 31):
        state = spark_state()
        found = call(records[::-1], state, chunks=chunks)
        assert [frame.to_dict() for frame in found] == [frame.to_dict() for frame in expected]
        assert state.get == in_order.get


def test_the_timeout_is_the_next_deadline() -> None:
    state = spark_state(watermark_ms=T0 - 5_000)
    call(Log().stable_member(T0, "g")[0], state)
    assert state._timeout_timestamp == T0 + 10_000


def test_what_the_watermark_allows_is_fired_after_the_rows() -> None:
    log = Log()
    row, member_id = stable_state(log)
    state = spark_state(row, watermark_ms=T0 + 9_999)
    frames = call([log.request(T0 + 500, heartbeat("g", member_id))], state)
    assert not contents(frames, LAYOUT.events_topic)
    assert state._timeout_timestamp == T0 + 10_500
    state = spark_state(row, watermark_ms=T0 + 10_000)
    removed, *_ = contents(call([], state), LAYOUT.events_topic)
    assert (removed["type"], removed["at_ms"]) == ("MemberRemoved", T0 + 10_000)


def test_a_timeout_is_never_set_behind_the_watermark() -> None:
    """Spark refuses one. A group whose clock is far behind has its deadlines fired, so none is left there."""
    row, _ = stable_state(Log())
    for ahead_ms in (9_998, 9_999):
        state = spark_state(row, watermark_ms=T0 + ahead_ms, timed_out=True)
        call([], state)
        assert state._timeout_timestamp == T0 + 10_000


def test_a_call_for_a_timeout_reads_no_rows_and_clears_what_fired() -> None:
    row, _ = stable_state(Log())
    state = spark_state(row, watermark_ms=T0 + 20_000, timed_out=True)
    frames = list(OPERATOR((b"g",), iter([pd.DataFrame()]), state))
    assert [e["type"] for e in contents(frames, LAYOUT.events_topic)][-1] == "Empty"
    next_pass_ms = (T0 // 600_000 + 1) * 600_000
    assert (state._updated, state._timeout_timestamp) == (True, next_pass_ms)
    assert group_in(state).members == {}


def test_a_group_that_never_was_leaves_no_state() -> None:
    state = spark_state()
    (frame,) = call([Log().request(T0, heartbeat("g", "nobody"))], state)
    assert len(frame) == 1
    assert (state.exists, state._updated, state._removed) == (False, False, False)


def test_a_view_is_written_once_a_call_and_only_if_history_grew() -> None:
    log = Log()
    state = spark_state()
    records, member_id = log.stable_member(T0, "g")
    (view,) = contents(call(records, state), LAYOUT.groups_topic)
    assert view["seq"] == group_in(state).seq
    state = spark_state(tuple(state.get))
    assert not contents(call([log.request(T0 + 1, heartbeat("g", member_id))], state), LAYOUT.groups_topic)


def test_a_call_that_is_made_again_says_the_same_bytes() -> None:
    log = Log()
    row, member_id = stable_state(log)
    records = [log.request(T0 + 1, join("g", "d")), log.request(T0 + 2, heartbeat("g", member_id))]
    first, second = spark_state(row), spark_state(row)
    assert [f.to_dict() for f in call(records, first)] == [f.to_dict() for f in call(records, second)]
    assert first.get == second.get


def test_a_large_backlog_is_handed_over_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "FRAME_MAX_RECORDS", 10)
    log = Log()
    row, member_id = stable_state(log)
    beats = [log.request(T0 + n, heartbeat("g", member_id)) for n in range(35)]
    assert [len(frame) for frame in call(beats, spark_state(row))] == [10, 10, 10, 5]


def test_outside_of_a_batch_the_latest_configuration_holds() -> None:
    stricter = replace(CONFIG, group_min_session_timeout_ms=20_000)
    operator = replace(OPERATOR, epochs=(ConfigEpoch(0, CONFIG), ConfigEpoch(7, stricter)))
    frames = call([Log().request(T0, join("g"))], spark_state(), operator=operator)
    assert contents(frames, LAYOUT.responses_topic)[0]["error_code"] == 26


OUTAGES = (KnownOutage(5, Outage(T0 + 1, T0 + 400_000)), KnownOutage(9, Outage(T0 + 500_000, T0 + 900_000)))


def test_while_no_coordinator_ran_nobody_expires() -> None:
    """The watermark is far beyond the member's session, and so was its heartbeat."""
    log = Log()
    row, member_id = stable_state(log)
    operator = replace(OPERATOR, outages=OUTAGES)
    state = spark_state(row, watermark_ms=T0 + 400_100)
    said = call([log.request(T0 + 300_000, heartbeat("g", member_id))], state, operator=operator)
    assert [answer["error_code"] for answer in contents(said, LAYOUT.responses_topic)] == [0]
    assert [entry["type"] for entry in contents(said, LAYOUT.events_topic)] == ["TakenOver"]
    assert group_in(state).clock_ms == T0 + 400_000
    assert state._timeout_timestamp == T0 + 410_000


def test_a_batch_knows_of_the_outages_that_ended_before_it_was_planned() -> None:
    operator = replace(OPERATOR, outages=OUTAGES)
    known = {batch_id: len(operator.known_outages(batch_id)) for batch_id in (4, 5, 8, 9, None)}
    assert known == {4: 0, 5: 1, 8: 1, 9: 2, None: 2}


def test_a_state_that_cannot_be_read_is_named() -> None:
    with pytest.raises(codec.StateError, match="the state of 'g' is of version 99"):
        call([], spark_state((99, b"")))


def test_a_record_that_cannot_be_refused_is_named() -> None:
    operator = replace(OPERATOR, step=raise_always)
    record = Log().request(T0, join("g"))
    with pytest.raises(OperatorError, match=f"^record {record.id} of group 'g': told to"):
        call([record], spark_state(), operator=operator)


def raise_always(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    raise ValueError("told to")


def raise_for_poison(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    effects = step(group, group_id, event, now_ms, config)
    if isinstance(event, Received) and _client_of(event) == "poison":
        raise ValueError("told to")
    assert not isinstance(event, Failed) or _client_of(event) == "poison"
    return effects


def _client_of(event: Received[AnyRequest] | Failed[AnyRequest]) -> str:
    return "" if isinstance(event.request, ConnectionClosed) else event.request.client_id


def test_a_deadline_at_fault_is_not_blamed_on_the_record_behind_it() -> None:
    """The group is quarantined by its deadline while a record is applied; the letter shows no record."""

    def raise_for_deadlines(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        if not isinstance(event, Received) and "Deadline" in type(event).__name__:
            raise ValueError("told to")
        return effects

    log = Log()
    row, member_id = stable_state(log)
    late = log.request(T0 + 11_000, heartbeat("g", member_id))
    frames = call([late], spark_state(row), operator=replace(OPERATOR, step=raise_for_deadlines))
    (letter,) = contents(frames, LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["request"], letter["answered"]) == ("HANDLER_FAILED", "", False)
    assert letter["message"].startswith(f"heartbeat deadline of {member_id} at {T0 + 10_000}\n")
    assert contents(frames, LAYOUT.responses_topic)[0]["error_code"] == 15


def test_a_fault_is_told_once() -> None:
    log = Log()
    row, member_id = stable_state(log)
    records = [
        log.request(T0 + 1, heartbeat("g", member_id, client="poison")),
        log.request(T0 + 2, heartbeat("g", member_id)),
        log.request(T0 + 3, heartbeat("g", member_id, client="poison")),
    ]
    state = spark_state(row)
    frames = call(records, state, operator=replace(OPERATOR, step=raise_for_poison))
    assert [answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)] == [-1, 0, -1]
    letters = contents(frames, LAYOUT.dead_letters_topic)
    assert [letter["request"] for letter in letters] == [records[0].id, records[2].id]
    assert group_in(state).members[member_id].heartbeat_deadline_ms == T0 + 10_002


def test_skipped_records_are_not_even_read() -> None:
    log = Log()
    garbage = log.append(T0, b"g", b"\xff" * 10, 1)
    operator = replace(OPERATOR, epochs=(ConfigEpoch(0, CONFIG, frozenset({garbage.id})),))
    (frame,) = call([garbage], spark_state(), operator=operator)
    (letter,) = contents([frame], LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["message"], letter["answered"]) == (
        "SKIPPED",
        "skipped by configuration",
        False,
    )


def test_a_key_shared_by_records_without_one_holds_no_group() -> None:
    """Records without a key share the empty one; only a group id that is empty too may be asked there."""
    log = Log()
    records = [log.request(T0, join("g")), log.append(T0, None, b"garbage", 0), log.request(T0, release(""))]
    state = spark_state()
    frames = call(records, state, key=b"")
    assert [answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)] == [42, 24]
    reasons = [letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)]
    assert sorted(reasons) == ["INVALID_REQUEST", "KEY_MISMATCH"]
    assert not state.exists


def test_a_value_with_line_feeds_is_whole() -> None:
    log = Log()
    request = sync("g", "m\nn", 1, {"a": b"\n"})
    record = log.request(T0, request)
    pretty = record._replace(value=json.dumps(json.loads(record.value or b""), indent=1).encode())
    (answer,) = contents(call([pretty], spark_state()), LAYOUT.responses_topic)
    assert (answer["type"], answer["error_code"]) == ("SyncGroup", 25)


def test_ids_of_members_follow_from_the_place_in_the_log_and_the_namespace() -> None:
    record = Log().request(T0, join("g", "app"))
    (answer,) = contents(call([record], spark_state()), LAYOUT.responses_topic)
    assert answer["member_id"] == new_member_id("app", record.id, NAMESPACE)
    secret = replace(CONFIG, member_id_namespace="00000000-0000-0000-0000-000000000001")
    operator = replace(OPERATOR, epochs=(ConfigEpoch(0, secret),))
    (other,) = contents(call([record], spark_state(), operator=operator), LAYOUT.responses_topic)
    assert other["member_id"] != answer["member_id"]
