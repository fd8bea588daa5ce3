"""Invariants of a group between two steps. Tests check them after every step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

from msgspec import msgpack
from msgspec.structs import replace

from kafka_why.contract.kafka.history import DEAD, EntryType, HistoryEntry
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects, KafkaGroup
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness import classic_invariants, consumer_invariants, share_invariants, streams_invariants


class InvariantError(AssertionError):
    """A fault of the coordinator: the group is in an illegal state."""


def check(group: KafkaGroup) -> None:
    """Raise InvariantError with the name of the first invariant that does not hold."""
    for name, holds in _of_its_protocol(group) + _of_every_group(group):
        if not holds:
            raise InvariantError(f"group {group.group_id!r}: {name}")


def _of_its_protocol(group: KafkaGroup) -> list[tuple[str, bool]]:
    match group:
        case ClassicGroup():
            return classic_invariants.invariants_of(group)
        case ConsumerGroup():
            return _of_epochs(group) + consumer_invariants.invariants_of(group)
        case ShareGroup():
            return _of_epochs(group) + share_invariants.invariants_of(group)
        case StreamsGroup():
            return _of_epochs(group) + streams_invariants.invariants_of(group)
        case _:
            assert_never(group)


def _of_epochs(group: ConsumerGroup | ShareGroup | StreamsGroup) -> list[tuple[str, bool]]:
    """Return the invariants of groups whose members have epochs: rows IV3, IV5, IV7, SV1, SV5, KSI3, KSI7."""
    members = group.members
    epoch = group.assignment_epoch
    static = {getattr(m, "instance_id", None): i for i, m in members.items()}
    return [
        ("the target is not ahead of the group", 1 <= epoch <= group.group_epoch),
        ("no member is ahead of the target", all(m.member_epoch <= epoch for m in members.values())),
        ("every member has a session", all(m.session_deadline_ms is not None for m in members.values())),
        ("only members have a target", group.target.keys() <= members.keys()),
        ("members are kept by their ids", all(m.member_id == i for i, m in members.items())),
        (
            "static ids map to members",
            getattr(group, "static_members", {}) == {k: i for k, i in static.items() if k is not None},
        ),
        ("an Empty group has no target ahead", bool(members) or not group.is_rebalancing),
    ]


def _of_every_group(group: KafkaGroup) -> list[tuple[str, bool]]:
    pending = group.pending
    return [
        ("no topic has an empty set of offsets", all(group.offsets.values())),
        ("no entry of pending offsets is empty", all(e.offsets and all(e.offsets.values()) for e in pending)),
        (
            "pending offsets are in the log's order",
            all(before.position < entry.position for before, entry in pairwise(pending)),
        ),
        (
            "pending offsets have the position of their request",
            all(o.position == e.position for e in pending for ps in e.offsets.values() for o in ps.values()),
        ),
        ("the clock is not behind what has fired", group.clock_ms >= group.last_fired_ms),
    ]


def check_life(history: Sequence[HistoryEntry]) -> None:
    """Check the history of a group from its creation to its end, if it has ended."""
    assert [entry.seq for entry in history] == list(range(1, len(history) + 1))
    for entry in history:
        if entry.type is EntryType.MEMBER_RECONCILED:
            assert (entry.revoking is not None) == (entry.member_state == "UnrevokedPartitions")
    for before, after in pairwise(history):
        assert before.at_ms <= after.at_ms
        assert before.to_state == after.from_state != DEAD
        assert before.generation <= after.generation


NOT_REFUSED = ("F1", "F2", "F3", "MI14")


def content_of(group: AnyGroup | None) -> bytes:
    """Return the group without its clock and the number of its history entries."""
    return b"" if group is None else msgpack.encode(replace(group, seq=0, clock_ms=0))


def check_refusal(effects: Effects, before: bytes) -> None:
    """Check that a refused ConsumerGroupHeartbeat says what is wrong, and leaves the group as it was.

    The group notes the topics whose ids an upgrade waits for (MI14). Faults are not the request's (F1 to F3).
    """
    for answer in (reply.response for reply in effects.replies):
        if not isinstance(answer, ConsumerGroupHeartbeatResponse) or answer.rule in NOT_REFUSED:
            continue
        if answer.error_code:
            assert len((answer.error_message or "").split()) > 2
            assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
            assert (answer.heartbeat_interval_ms, effects.earliest_armed_ms) == (0, None)
            assert content_of(effects.group) == before
            refusals = {EntryType.MEMBER_FENCED, EntryType.JOIN_REFUSED}
            assert {entry.type for entry in effects.history} <= refusals
