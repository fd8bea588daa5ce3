"""The recorded history of this version is read, and its batches write the same again.

`tests/histories/state_v<version>.json.xz` has batches of random logs, with the rows of the state and all
outputs. The rows are read at each point of the logs, and this code continues from them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from checkpoints import codec
from checkpoints.checkpoint import SAME_RULES
from checkpoints.codec import STATE_VERSION
from clients.coordinator_client import decode_response
from kafka_why.contract.claims import Claim
from kafka_why.contract.codec import unpack
from kafka_why.contract.history_reader import (
    CoordinatorStarted,
    GroupTable,
    HistoryReader,
    decode_any_entry,
    decode_any_snapshot,
)
from kafka_why.contract.kafka.history import GroupState, MemberState
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.metrics.metrics_state import MetricsState
from state.config import CoordinatorConfig
from streaming.service.topic_watch.offset_topics import OffsetTopics
from tests.harness.operator_call import CONFIG
from tests.histories.record import State, handle
from tests.histories.recording import OutputRecord, Part, as_json, load
from tests.spark.log import LAYOUT, Record

RECORDED = load(STATE_VERSION)
assert all(RECORDED.logs.values()), "a log without parts"
assert RECORDED.logs


def steps() -> Iterator[tuple[Part | None, Part]]:
    """Each part of each log, with the part before it."""
    for parts in RECORDED.logs.values():
        yield from zip((None, *parts), parts, strict=False)


def outputs(topic: str) -> Iterator[list[OutputRecord]]:
    for parts in RECORDED.logs.values():
        records = [record for part in parts for record in part.output if record.topic == topic]
        assert records, topic
        yield records


def state_after(part: Part | None) -> State:
    return {row.shard: (row.version, row.payload) for row in part.rows} if part is not None else {}


def said(output: Iterable[OutputRecord]) -> Counter[tuple[str, int, str | None, str | None]]:
    """Return the outputs, with the answers of a pack one by one. The order of two groups' records has no
    meaning.
    """
    return Counter(
        (record.topic, record.partition, record.key, value)
        for record in output
        for value in ([None] if record.value is None else map(bytes.decode, unpack(record.value.encode())))
    )


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def test_recorded_state_rows_hold_the_recorded_groups() -> None:
    for _, part in steps():
        groups = {
            group_id: as_json(codec.decode_group(group_id, entry))
            for row in part.rows
            for group_id, entry in codec.read_row(str(row.shard), row.version, row.payload).items()
        }
        assert groups == part.groups


HELD = {
    "join_phase": {"static_members", "pending_members", "offsets", "join_phase", "pending", "ended"},
    "resolved_regexes": {
        *("configs", "offsets", "resolved_regexes", "checked_regexes", "static_members", "target", "topics"),
    },
    "initialized": {
        *("members", "target", "topics", "initializing", "initialized", "deleting"),
        *("deletion", "parked", "overdue_deadline_ms"),
    },
    "locks": {"consumers", "producers", "locks"},
}
"""A field by which a kind of groups is known, and the fields that have to have something in them."""


def test_recorded_history_covers_every_group_state() -> None:
    """Otherwise these tests would show little."""
    groups = [group for _, part in steps() for group in part.groups.values()]
    assert {group["state"] for group in groups if "state" in group} == set(GroupState)
    for known_by, fields in HELD.items():
        assert fields <= held_in(group for group in groups if known_by in group)
    assert [group["configs"] for group in groups if not {"members", "consumers"} & group.keys()]
    consumers = [m for group in groups if "resolved_regexes" in group for m in group["members"].values()]
    assert {member["state"] for member in consumers} == set(MemberState)
    assert {"classic", "instance_id", "pending_revocation", "subscribed_topic_regex"} <= held_in(consumers)
    tables = (table for group in groups if "locks" in group for table in group["consumers"].values())
    assert {"channels", "subscriptions", "differing"} <= held_in(tables)


def held_in(structs: Iterable[dict[str, Any]]) -> set[str]:
    """Return the fields that have something in them, in one of these."""
    return {name for struct in structs for name, held in struct.items() if held}


def test_replayed_batch_has_the_recorded_outcome() -> None:
    """The first part begins without state, so whole logs are handled, too.

    Where this fails because rules were changed on purpose: give the project a new version, begin
    `checkpoints.checkpoint.SAME_RULES` with it anew, and record the history again.
    """
    assert RECORDED.code_version in SAME_RULES
    assert CoordinatorConfig().with_settings(RECORDED.settings) == CONFIG
    for before, part in steps():
        state = state_after(before)
        rows = ((r.partition, r.offset, r.at_ms, r.key.encode(), r.value.encode()) for r in part.records)
        assert said(handle([Record(*row) for row in rows], state, part.watermark_ms)) == said(part.output)
        assert state_after(part).keys() == state.keys()


def test_recorded_history_is_read_without_a_gap() -> None:
    for records in outputs(LAYOUT.events_topic):
        reader = HistoryReader(from_start=True)
        entries = [decode_any_entry((record.value or "").encode()) for record in records]
        for record, entry in zip(records, entries, strict=True):
            assert entry is not None
            assert not isinstance(entry, CoordinatorStarted)
            assert reader.is_new(entry)
            recorded = msgspec.json.decode(record.value or "")
            assert (entry.group_id, entry.seq, entry.type) == tuple(
                recorded[name] for name in ("group_id", "seq", "type")
            )
        assert reader.gaps == {}
        assert reader.duplicates == 0
        assert entries


def test_recorded_views_match_the_groups() -> None:
    for parts in RECORDED.logs.values():
        table = GroupTable(decode_any_snapshot)
        for part in parts:
            for record in part.output:
                if record.topic == LAYOUT.groups_topic:
                    table.apply(encoded(record.key), encoded(record.value))
            of_kafka = {view.group_id: view for view in table.groups if isinstance(view, GroupSnapshot)}
            held = {g: group for g, group in part.groups.items() if {"state", "group_epoch"} & group.keys()}
            assert {g: (v.generation, len(v.members)) for g, v in of_kafka.items()} == {
                g: (group.get("generation", group.get("group_epoch")), len(group["members"]))
                for g, group in held.items()
            }
            states = {
                group_id: view.state for group_id, view in of_kafka.items() if view.group_type == "classic"
            }
            assert states == {g: group["state"] for g, group in held.items() if "state" in group}


def test_recorded_offsets_match_the_groups() -> None:
    """By the watcher of topics, which knows their topics' ids, and by the metrics."""
    for parts in RECORDED.logs.values():
        topics, metrics = OffsetTopics(), MetricsState(LAYOUT)
        for part in parts:
            for record in part.output:
                if record.topic == LAYOUT.offsets_topic:
                    key, value = encoded(record.key) or b"", encoded(record.value)
                    topics.apply(key, value)
                    metrics.apply(record.topic, key, value)
            held = {
                (group_id, topic, int(partition)): offset["offset"]
                for group_id, group in part.groups.items()
                for topic, partitions in group.get("offsets", {}).items()
                for partition, offset in partitions.items()
            }
            assert topics.names() == {topic for _, topic, _ in held}
            assert offsets_of(metrics) == held


def offsets_of(metrics: MetricsState) -> dict[tuple[str, str, int], int]:
    metrics.mark_complete()
    lags = metrics.numbers().lags
    assert lags is not None
    return {(g, *where): lag.offset for g, of_group in lags.items() for where, lag in of_group.lags.items()}


def test_recorded_answers_are_decoded_by_clients() -> None:
    for records in outputs(LAYOUT.responses_topic):
        answers = [answer for record in records for answer in unpack((record.value or "").encode())]
        for answer in answers:
            recorded = msgspec.json.decode(answer)
            read = msgspec.json.decode(msgspec.json.encode(decode_response(answer)))
            assert {name: read[name] for name in recorded if name in read} == recorded
        assert answers


def test_recorded_start_entry_and_claim_are_decoded() -> None:
    entry = decode_any_entry(msgspec.json.encode(RECORDED.started))
    assert isinstance(entry, CoordinatorStarted)
    assert (entry.settings, entry.code_version) == (RECORDED.settings, RECORDED.code_version)
    assert entry.owner_epoch == 1
    assert msgspec.to_builtins(msgspec.convert(RECORDED.claim, Claim)) == RECORDED.claim
