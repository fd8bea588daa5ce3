"""Applies sightings: polls that found a classic group rebalancing, which its log does not show. Rows OB30 to
OB33.

The log has a generation only after its assignment is stored. Polls of the brokers (ListGroups,
DescribeGroups) show a group while it rebalances. They show about when the rebalance began, and the members at
that time. They do not distinguish members that have joined from members that the others wait for. Sightings
and the log arrive independently. The beginning of a rebalance is recorded in the history after the log has
been read up to it: at the next generation, or when `read_ms` of a sighting is late enough.
"""

from collections.abc import Sequence

from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.sightings import RebalanceSeen, SeenMember
from kafka_why.observed.group import Classic, ObservedGroup, Sighting
from kafka_why.observed.observation import (
    Change,
    Observation,
    difference,
    open_rebalance,
    record_members,
    removal_reason,
)
from kafka_why.observed.records import ClassicMember

# A generation that was formed longer than this after the last sighting may belong to another rebalance.
SILENCE_MAX_MS = 15_000
# The assumed maximum difference of two brokers' clocks.
CLOCKS_DIFFER_MS = 500
_SIGHTINGS_MAX = 8
_NO_GENERATION = "the rebalance formed no generation, so the previous one is still in force"


def observe_sighting(seen: Observation, now: RebalanceSeen) -> None:
    """Apply a sighting, unless it is older than the group's last generation."""
    group = seen.group
    if group.classic is None:
        return
    found = next((s for s in group.sightings if s.run == now.run), None)
    if now.is_over:
        if found is not None and now.read_ms is not None and now.read_ms >= now.seen_ms:
            _end_without_generation(seen, found)
        return
    if found is None:
        found = _new_sighting(group, group.classic, now)
        if found is None or len(group.sightings) == _SIGHTINGS_MAX:
            return
        group.sightings.append(found)
    _update(group.classic, found, now)
    if now.read_ms is not None and now.read_ms >= found.first_ms:
        for earlier in group.sightings[: group.sightings.index(found)]:
            _end_without_generation(seen, earlier)
        if not found.is_recorded and found.members is not None:
            _record_beginning(seen, found, [], found.first_ms)


def _update(classic: Classic, found: Sighting, now: RebalanceSeen) -> None:
    # The earliest time is the best estimate, because a sighting is delayed until its record is written.
    if not found.is_recorded and now.first_ms > classic.since_ms + CLOCKS_DIFFER_MS:
        found.first_ms = min(found.first_ms, now.first_ms)
    found.last_ms = now.seen_ms
    if now.state == GroupState.PREPARING_REBALANCE:
        found.last_members = None if now.members is None else [m.member_id for m in now.members]


def _new_sighting(group: ObservedGroup, classic: Classic, now: RebalanceSeen) -> Sighting | None:
    """Return the sighting of a new rebalance, or None if it may be the one of the group's last generation."""
    # A new group had no rebalance before its first generation, so the clocks' difference does not matter.
    is_new = group.generation == 0 and not classic.members
    since_ms = classic.since_ms if is_new else classic.since_ms + CLOCKS_DIFFER_MS
    if now.first_ms > since_ms:
        members = now.members if now.seen_ms == now.first_ms else None
        return _build_sighting(now, now.first_ms, now.within_ms, members)
    # The series of polls began earlier, so a generation was stored meanwhile and the group rebalances again.
    if now.seen_ms > since_ms:
        return _build_sighting(now, now.seen_ms, now.seen_ms - classic.since_ms, now.members)
    return None


def _build_sighting(
    now: RebalanceSeen, first_ms: int, within_ms: int, members: Sequence[SeenMember] | None
) -> Sighting:
    # Only a poll before the generation is formed shows the members at the beginning.
    is_early = now.state == GroupState.PREPARING_REBALANCE
    known = list(members) if members is not None and is_early else None
    return Sighting(now.run, now.state, first_ms, within_ms, known, now.seen_ms)


def claim_sighting(
    seen: Observation, members: Sequence[ClassicMember], formed_ms: int, *, also: str
) -> Sighting | None:
    """Return the sighting of the rebalance that formed a generation with these members, or None.

    Record the beginning of the rebalance, unless the history has it. `also` is appended to its reason. Older
    sightings are removed from the group.
    """
    group = seen.group
    stored_ms = seen.at.time_ms
    candidates = [s for s in group.sightings if s.is_recorded or s.first_ms < stored_ms]
    later_ms = stored_ms + CLOCKS_DIFFER_MS
    group.sightings = [s for s in group.sightings if s.first_ms > later_ms and not s.is_recorded]
    recorded = next((s for s in candidates if s.is_recorded), None)
    if recorded is not None or not candidates:
        return recorded
    found = candidates[-1]
    earliest_ms = found.first_ms - found.within_ms
    if formed_ms - found.last_ms > SILENCE_MAX_MS or formed_ms < earliest_ms:
        return None
    if _is_of_later_rebalance(seen, found, members):
        return None
    _record_beginning(seen, found, members, min(found.first_ms, formed_ms), also)
    return found


def _is_of_later_rebalance(seen: Observation, found: Sighting, formed: Sequence[ClassicMember]) -> bool:
    """Return True if the sighting lacks a member of both generations, because no member id is used twice."""
    assert seen.group.classic is not None
    stayed = {m.member_id for m in seen.group.classic.members} & {m.member_id for m in formed}
    return found.members is not None and not stayed <= {m.member_id for m in found.members}


def _record_beginning(
    seen: Observation, found: Sighting, formed: Sequence[ClassicMember], at_ms: int, also: str = ""
) -> None:
    """Record the beginning of a rebalance. `formed` are the members of its generation, or []."""
    group = seen.group
    classic = group.classic
    assert classic is not None
    before = classic.members
    change = difference(before, formed, group.protocol_type)
    first_members = _first_members(before, formed, found) if found.members is not None else list(formed)
    at_first = difference(before, first_members, group.protocol_type)
    earliest_ms = max(found.first_ms - found.within_ms, group.last_entry_ms)
    at_ms = max(at_ms, group.last_entry_ms)
    open_rebalance(
        seen,
        Change(at_first.joined, at_first.gone, at_first.back, change.changed if formed else []),
        at_ms,
        within_ms=max(at_ms - earliest_ms, 0),
        also=also,
    )
    found.before, classic.members = before, first_members


def _first_members(
    before: Sequence[ClassicMember], formed: Sequence[ClassicMember], found: Sighting
) -> list[ClassicMember]:
    """Return the members at the first sighting.

    The data of a member is from the formed generation, or else from the previous generation, or else from the
    poll.
    """
    known = {m.member_id: m for m in (*before, *formed)}
    # Members of neither generation may belong to the next generation if clocks differ.
    first_members = [m for m in found.members or () if not formed or m.member_id in known]
    return [known.get(m.member_id) or _classic_member(m) for m in first_members]


def _classic_member(member: SeenMember) -> ClassicMember:
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=0,
        rebalance_timeout_ms=0,
        subscription=b"",
        assignment=b"",
    )


def record_changes_since_sighting(
    seen: Observation, sighting: Sighting, change: Change, formed_ms: int
) -> list[str] | None:
    """Record the members that joined and left after the group was first seen rebalancing.

    Return the members of the previous generation for which the others may have waited, or None. They were in
    the group at the last sighting, but are not in the new generation.
    """
    still = set(sighting.last_members or ())
    had = {m.member_id for m in sighting.before or ()}
    ago_ms = max(formed_ms - sighting.last_ms, 0)
    awaited = still & had if ago_ms <= SILENCE_MAX_MS else set()

    def why(member: ClassicMember) -> str:
        text = removal_reason(seen, member, formed_ms)
        if member.member_id not in awaited:
            return text
        return f"{text}; it was a member {ago_ms / 1000:.1f} s before the generation was formed"

    record_members(seen, "OB31", Change(change.joined, [], change.back, change.changed), formed_ms)
    record_members(seen, "OB32", Change([], change.gone, [], []), formed_ms, why)
    return [m.member_id for m in change.gone if m.member_id in awaited] or None


def end_all(seen: Observation) -> None:
    """End all sightings. The log shows that their rebalances ended without a generation."""
    for sighting in list(seen.group.sightings):
        _end_without_generation(seen, sighting)


def _end_without_generation(seen: Observation, found: Sighting) -> None:
    """End a rebalance that formed no generation.

    Another broker became the coordinator and loaded the previous one.
    """
    group = seen.group
    group.sightings = [s for s in group.sightings if s is not found]
    if found.before is None or group.classic is None:
        return
    classic, at_ms = group.classic, found.last_ms
    change = difference(classic.members, found.before, group.protocol_type)
    classic.members = found.before
    record_members(seen, "OB33", change, at_ms, lambda _: _NO_GENERATION)
    is_empty = not found.before
    seen.record(
        "OB33",
        EntryType.EMPTY if is_empty else EntryType.STABLE,
        _NO_GENERATION,
        to_state=(GroupState.EMPTY if is_empty else GroupState.STABLE).value,
        at_ms=at_ms,
        leader_id=classic.leader_id,
        protocol_name=classic.protocol_name,
        members=[m.member_id for m in found.before],
        assignments={m.member_id: m.assignment for m in found.before},
    )
