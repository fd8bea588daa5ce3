"""Classic groups: what one generation and the next say about the rebalance between them. Rows OB1 to OB14.

Kafka writes a generation when its leader has sent the assignment, or when it has no members. So the members
and what they have are known, and when the generation was formed. What happened between two generations is
not in the log: the differences are all there is.
"""

from collections.abc import Sequence

from msgspec import Struct

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE, ProtocolError, decode_subscribed_topics
from state.kafka.classic_group import GroupState
from state.kafka.history import EntryType
from state.kafka.observed.group import CREATION, Classic, ObservedGroup
from state.kafka.observed.observation import Observation, listed
from state.kafka.observed.records import ClassicGeneration, ClassicMember
from state.kafka.snapshot import NamedPartitions

_BETWEEN = "left no record: each was overtaken before its assignment, or its record was compacted"
_FOUND = "the group was like this when its records were first read"
_FIRST = "the first generation of the group, whose creation left no record"


class _Change(Struct, frozen=True):
    """What differs between two generations. `back` are static members under a new id, with the former one."""

    joined: list[ClassicMember]
    gone: list[ClassicMember]
    back: list[tuple[ClassicMember, str]]
    changed: list[ClassicMember]


def observe_generation(seen: Observation, now: ClassicGeneration) -> None:
    """Take the next generation of the group."""
    group = seen.group
    before = group.classic
    if before is None:
        _find(seen, now)
        return
    change = _difference(group, before, now)
    if now.generation > group.generation:
        _rebalance(seen, now, change)
    else:
        _replace_in_place(seen, now, change)


def find_again(seen: Observation, now: ClassicGeneration) -> None:
    """The group is another one of this name: the records that ended the one before are missing."""
    seen.lose()
    seen.group.classic = None
    _find(seen, now)


def _find(seen: Observation, now: ClassicGeneration) -> None:
    """The first generation that was read of this group."""
    group = seen.group
    if _is_first(now) and group.seq == CREATION:
        seen.record("OB14", EntryType.GROUP_CREATED, _FIRST, at_ms=_formed_ms(seen, now))
        _rebalance(seen, now, _Change(joined=list(now.members), gone=[], back=[], changed=[]))
        return
    is_creation = not now.members and now.generation == 0 and group.seq == CREATION and not group.offsets
    store(seen, now)
    if is_creation:
        seen.record("OB1", EntryType.GROUP_CREATED, "the group was created")
        return
    at_ms = seen.at.time_ms if now.since_ms is None else min(now.since_ms, seen.at.time_ms)
    if not now.members:
        group.state, group.state_timestamp_ms = GroupState.EMPTY.value, at_ms
        seen.record("OB2", EntryType.EMPTY, _FOUND)
        return
    group.state, group.state_timestamp_ms = GroupState.STABLE.value, seen.at.time_ms
    _record_stable(seen, "OB2", now, _FOUND)


def _is_first(now: ClassicGeneration) -> bool:
    """Whether all members came in the group's first generation. Kafka 3.9 writes nothing before that one, nor
    does any version if the group had offsets. A static member may have come later, in the place of another.
    """
    has_static = any(m.group_instance_id is not None for m in now.members)
    return now.generation == 1 and bool(now.members) and not has_static


def _rebalance(seen: Observation, now: ClassicGeneration, change: _Change) -> None:
    """A later generation: who came and went since the one before, and what they have now."""
    group, before = seen.group, seen.group.generation
    formed_ms = _formed_ms(seen, now)
    rule, reason, member_ids = _reason(seen, change, formed_ms)
    skipped = range(before + 1, now.generation)
    if skipped:
        numbers = (
            f"generation {skipped[0]}" if len(skipped) == 1 else f"generations {skipped[0]} to {skipped[-1]}"
        )
        reason += f"; {numbers} {_BETWEEN}"
    _record_members(seen, rule, change, formed_ms)
    previous_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = formed_ms, reason
    seen.record(
        rule,
        EntryType.PREPARING_REBALANCE,
        reason,
        to_state=GroupState.PREPARING_REBALANCE.value,
        at_ms=formed_ms,
        member_id=member_ids[0] if len(member_ids) == 1 else None,
        last_rebalance_at_ms=previous_ms,
    )
    store(seen, now)
    if not now.members:
        seen.record(
            "OB11",
            EntryType.EMPTY,
            "the last member is gone",
            to_state=GroupState.EMPTY.value,
            at_ms=formed_ms,
        )
        return
    by_member = {m.member_id: _topics(now, m) for m in now.members}
    seen.record(
        "OB10",
        EntryType.COMPLETING_REBALANCE,
        "the generation was formed, and its leader made the assignment",
        to_state=GroupState.COMPLETING_REBALANCE.value,
        at_ms=formed_ms,
        members=list(by_member),
        leader_id=now.leader_id,
        protocol_name=now.protocol_name,
        topics=_all_topics(list(by_member.values())),
        subscriptions=_where_they_differ(by_member),
    )
    _record_stable(seen, "OB10", now, "the leader's assignment was stored")


def _record_stable(seen: Observation, rule: str, now: ClassicGeneration, reason: str) -> None:
    seen.record(
        rule,
        EntryType.STABLE,
        reason,
        to_state=GroupState.STABLE.value,
        leader_id=now.leader_id,
        protocol_name=now.protocol_name,
        members=[m.member_id for m in now.members],
        assignments={m.member_id: m.assignment for m in now.members},
    )


def _replace_in_place(seen: Observation, now: ClassicGeneration, change: _Change) -> None:
    """The same generation again: a static member came back and took its place without a rebalance.

    A lower generation is one of another group of this name, whose beginning is not in the log.
    """
    if now.generation < seen.group.generation:
        find_again(seen, now)
        return
    for member, former in change.back:
        _record_back(seen, "OB9", member, former, seen.at.time_ms)
    store(seen, now)


def _reason(seen: Observation, change: _Change, formed_ms: int) -> tuple[str, str, list[str]]:
    """Return the row, the reason in a sentence, and the members that it is about."""
    joined = [m.member_id for m in change.joined]
    gone = [m.member_id for m in change.gone]
    back = [m.member_id for m, _ in change.back]
    changed = [m.member_id for m in change.changed]
    texts = []
    if joined:
        texts.append(f"{listed(joined, 'member')} joined")
    if gone:
        texts.append("; ".join(_why_gone(seen, m, formed_ms) for m in change.gone))
    if back:
        texts.append(f"static {listed(back, 'member')} came back")
    if changed:
        texts.append(f"{listed(changed, 'member')} subscribed to other topics")
    kinds = [(rule, ids) for rule, ids in zip(_ROWS, (joined, gone, back, changed), strict=True) if ids]
    if not kinds:
        return "OB8", "the same members joined again, and the log does not say which of them began", []
    if len(kinds) == 1:
        rule, member_ids = kinds[0]
        return rule, texts[0], member_ids
    reason = f"{'; '.join(texts)}; the log does not say in which order"
    return "OB7", reason, [member_id for _, ids in kinds for member_id in ids]


_ROWS = ("OB4", "OB3", "OB5", "OB6")


def _why_gone(seen: Observation, member: ClassicMember, formed_ms: int) -> str:
    group = seen.group
    assert group.classic is not None
    held, since_ms = group.held_by(member), group.classic.since_ms
    return group.why_gone(member.member_id, held, since_ms, formed_ms)


def _record_members(seen: Observation, rule: str, change: _Change, formed_ms: int) -> None:
    for member, former in change.back:
        _record_back(seen, rule, member, former, formed_ms)
    for kind, members in (
        (EntryType.MEMBER_ADDED, change.joined),
        (EntryType.MEMBER_REMOVED, change.gone),
        (EntryType.MEMBER_REJOINED, change.changed),
    ):
        for member in members:
            is_gone = kind is EntryType.MEMBER_REMOVED
            seen.record(
                rule,
                kind,
                _why_gone(seen, member, formed_ms) if is_gone else _MEMBER_REASONS[kind],
                at_ms=formed_ms,
                **_about(member),
            )


_MEMBER_REASONS = {
    EntryType.MEMBER_ADDED: "a new member joined",
    EntryType.MEMBER_REJOINED: "a member subscribed to other topics",
}


def _record_back(seen: Observation, rule: str, member: ClassicMember, former: str, at_ms: int) -> None:
    seen.record(
        rule,
        EntryType.MEMBER_REPLACED,
        "a static member came back",
        at_ms=at_ms,
        replaced_member_id=former,
        **_about(member),
    )


def _about(member: ClassicMember) -> dict[str, str | None]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


def _difference(group: ObservedGroup, before: Classic, now: ClassicGeneration) -> _Change:
    had = {m.member_id: m for m in before.members}
    has = {m.member_id: m for m in now.members}
    former = {m.group_instance_id: m.member_id for m in before.members if m.group_instance_id is not None}
    new = [m for m in now.members if m.member_id not in had]
    back = [(m, former[m.group_instance_id]) for m in new if m.group_instance_id in former]
    came_back = {m.member_id for m, _ in back}
    replaced = {was for _, was in back}
    return _Change(
        joined=[m for m in new if m.member_id not in came_back],
        gone=[m for m in before.members if m.member_id not in has and m.member_id not in replaced],
        back=back,
        changed=[
            m for m in now.members if m.member_id in had and _topics(now, m) != _topics(now, had[m.member_id])
        ],
    )


def _formed_ms(seen: Observation, now: ClassicGeneration) -> int:
    """When the generation was formed, or of records before Kafka 2.1 when it had its assignment."""
    if now.since_ms is None:
        return seen.at.time_ms
    return min(max(now.since_ms, seen.group.told_ms), seen.at.time_ms)


def store(seen: Observation, now: ClassicGeneration) -> None:
    """Make this generation the group's."""
    group = seen.group
    group.generation, group.protocol_type = now.generation, now.protocol_type or group.protocol_type
    group.classic = Classic(now.protocol_name, now.leader_id, seen.at.time_ms, list(now.members))
    seen.has_news = True


def _topics(now: ClassicGeneration, member: ClassicMember) -> tuple[str, ...] | None:
    """The topics that a member subscribes to, None if its bytes are not of Kafka's consumer."""
    if now.protocol_type != PROTOCOL_TYPE:
        return None
    try:
        return tuple(sorted(decode_subscribed_topics(member.subscription)))
    except ProtocolError:
        return None


def _all_topics(subscribed: Sequence[tuple[str, ...] | None]) -> list[str] | None:
    if any(topics is None for topics in subscribed):
        return None
    return sorted({topic for topics in subscribed for topic in topics or ()})


def _where_they_differ(by_member: dict[str, tuple[str, ...] | None]) -> dict[str, list[str]] | None:
    """What each member subscribes to, None if all subscribe to the same."""
    if len(set(by_member.values())) < 2 or None in by_member.values():
        return None
    return {member_id: list(topics or ()) for member_id, topics in by_member.items()}


def by_topic(partitions: Sequence[TopicPartition]) -> NamedPartitions:
    """Return the partitions by topic, sorted by both."""
    topics: NamedPartitions = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics
