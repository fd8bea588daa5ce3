"""Applies sightings: polls that found a classic group rebalancing, which its log does not show (rows OB30 to
OB33 of docs/observe.md).

The log has a generation only after its assignment is stored. Polls of the brokers (ListGroups,
DescribeGroups) show a group while it rebalances. They show about when the rebalance began, and the members at
that time. They do not distinguish members that have joined from members that the others wait for. Sightings
and the log arrive independently. The beginning of a rebalance is recorded in the history after the log has
been read up to it: at the next generation, or at a sighting whose `read_ms` (the time up to which the log had
been read) is not before the beginning.
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
_SIGHTINGS_MAX = 8  # of one group at a time
_NO_GENERATION = "the rebalance formed no generation, so the previous one is still in force"


def observe_sighting(seen: Observation, now: RebalanceSeen) -> None:
    """Apply `now`, a poll that found the group rebalancing or no longer rebalancing.

    A poll that may be older than the group's last generation has no effect.
    """
    group = seen.group
    if group.classic is None:
        return
    sighting = next((s for s in group.sightings if s.run == now.run), None)
    if now.is_over:
        # Until the log has been read up to this poll, a generation may follow.
        if sighting is not None and now.read_ms is not None and now.read_ms >= now.seen_ms:
            _end_without_generation(seen, sighting)
        return
    if sighting is None:
        sighting = _new_sighting(group, group.classic, now)
        if sighting is None or len(group.sightings) == _SIGHTINGS_MAX:
            return
        group.sightings.append(sighting)
    _update_sighting(group.classic, sighting, now)
    # The log was read up to the beginning of this rebalance, so the earlier ones formed no generation.
    if now.read_ms is not None and now.read_ms >= sighting.first_ms:
        for earlier in group.sightings[: group.sightings.index(sighting)]:
            _end_without_generation(seen, earlier)
        if not sighting.is_recorded and sighting.members is not None:
            _record_beginning(seen, sighting, formed=[], at_ms=sighting.first_ms)


def _update_sighting(classic: Classic, sighting: Sighting, now: RebalanceSeen) -> None:
    """Apply a later poll of the same series."""
    # `first_ms` of a poll is too late by the time until its record was appended. So the earliest is the best
    # estimate.
    if not sighting.is_recorded and now.first_ms > classic.since_ms + CLOCKS_DIFFER_MS:
        sighting.first_ms = min(sighting.first_ms, now.first_ms)
    sighting.last_ms = now.seen_ms
    if now.state == GroupState.PREPARING_REBALANCE:
        sighting.last_members = None if now.members is None else [m.member_id for m in now.members]


def _new_sighting(group: ObservedGroup, classic: Classic, now: RebalanceSeen) -> Sighting | None:
    """Return the sighting of a new rebalance, or None if the rebalance may be that of the last generation."""
    # A new group had no rebalance before its first generation, so the clocks' difference does not matter.
    is_new = group.generation == 0 and not classic.members
    since_ms = classic.since_ms if is_new else classic.since_ms + CLOCKS_DIFFER_MS
    if now.first_ms > since_ms:
        # A later poll of the series does not show the members at the first one.
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
    initial_members = list(members) if members is not None and is_early else None
    return Sighting(now.run, now.state, first_ms, within_ms, members=initial_members, last_ms=now.seen_ms)


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
    # A sighting after the generation was stored is of the next rebalance, so it stays.
    later_ms = stored_ms + CLOCKS_DIFFER_MS
    group.sightings = [s for s in group.sightings if s.first_ms > later_ms and not s.is_recorded]
    recorded = next((s for s in candidates if s.is_recorded), None)
    if recorded is not None or not candidates:
        return recorded
    sighting = candidates[-1]
    earliest_ms = sighting.first_ms - sighting.within_ms
    if formed_ms - sighting.last_ms > SILENCE_MAX_MS or formed_ms < earliest_ms:
        return None
    if _is_of_later_rebalance(seen, sighting, members):
        return None
    _record_beginning(seen, sighting, members, min(sighting.first_ms, formed_ms), also)
    return sighting


def _is_of_later_rebalance(seen: Observation, sighting: Sighting, formed: Sequence[ClassicMember]) -> bool:
    """Return True if the sighting lacks a member that is in the generations before and after it.

    The member cannot have left and come back meanwhile, because no member id is used twice.
    """
    assert seen.group.classic is not None
    stayed = {m.member_id for m in seen.group.classic.members} & {m.member_id for m in formed}
    return sighting.members is not None and not stayed <= {m.member_id for m in sighting.members}


def _record_beginning(
    seen: Observation, sighting: Sighting, formed: Sequence[ClassicMember], at_ms: int, also: str = ""
) -> None:
    """Record the beginning of a rebalance that polls saw, at `at_ms`.

    `formed` are the members of the generation that it formed, or [] if there is none yet. `also` is appended
    to the reason.
    """
    group = seen.group
    classic = group.classic
    assert classic is not None
    before = classic.members
    change = difference(before, formed, group.protocol_type)
    first_members = _first_members(before, formed, sighting) if sighting.members is not None else list(formed)
    at_first = difference(before, first_members, group.protocol_type)
    earliest_ms = max(sighting.first_ms - sighting.within_ms, group.last_entry_ms)
    at_ms = max(at_ms, group.last_entry_ms)
    open_rebalance(
        seen,
        Change(joined=at_first.joined, gone=at_first.gone, back=at_first.back, changed=change.changed),
        at_ms,
        within_ms=max(at_ms - earliest_ms, 0),
        also=also,
    )
    # From now on, changes of members are relative to the first sighting (`record_changes_since_sighting`).
    sighting.before, classic.members = before, first_members


def _first_members(
    before: Sequence[ClassicMember], formed: Sequence[ClassicMember], sighting: Sighting
) -> list[ClassicMember]:
    """Return the members at the first sighting.

    The data of a member is from the formed generation, or else from the previous generation, or else from the
    poll.
    """
    member_by_id = {m.member_id: m for m in (*before, *formed)}
    # Members of neither generation may belong to the next generation if clocks differ.
    first_members = [m for m in sighting.members or () if not formed or m.member_id in member_by_id]
    return [member_by_id.get(m.member_id) or _classic_member(m) for m in first_members]


def _classic_member(member: SeenMember) -> ClassicMember:
    """Return a member that only a poll shows, so that most of its data is unknown."""
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

    Return the members of the previous generation that the others may have waited for, or None. They were in
    the group at the last sighting, but are not in the new generation.
    """
    last_seen = set(sighting.last_members or ())
    previous = {m.member_id for m in sighting.before or ()}
    ago_ms = max(formed_ms - sighting.last_ms, 0)
    awaited = last_seen & previous if ago_ms <= SILENCE_MAX_MS else set()

    def reason_of_removal(member: ClassicMember) -> str:
        text = removal_reason(seen, member, formed_ms)
        if member.member_id not in awaited:
            return text
        return f"{text}; it was a member {ago_ms / 1000:.1f} s before the generation was formed"

    record_members(
        seen,
        "OB31",
        Change(joined=change.joined, gone=[], back=change.back, changed=change.changed),
        formed_ms,
    )
    record_members(
        seen, "OB32", Change(joined=[], gone=change.gone, back=[], changed=[]), formed_ms, reason_of_removal
    )
    return [m.member_id for m in change.gone if m.member_id in awaited] or None


def end_all_sightings(seen: Observation) -> None:
    """End all sightings. The log shows that their rebalances ended without a generation."""
    for sighting in list(seen.group.sightings):
        _end_without_generation(seen, sighting)


def _end_without_generation(seen: Observation, sighting: Sighting) -> None:
    """End a rebalance that formed no generation.

    Another broker became the coordinator and loaded the previous generation.
    """
    group = seen.group
    group.sightings = [s for s in group.sightings if s is not sighting]
    if sighting.before is None or group.classic is None:
        return
    classic, at_ms = group.classic, sighting.last_ms
    change = difference(classic.members, sighting.before, group.protocol_type)
    classic.members = sighting.before
    record_members(seen, "OB33", change, at_ms, lambda _: _NO_GENERATION)
    is_empty = not sighting.before
    seen.record(
        "OB33",
        EntryType.EMPTY if is_empty else EntryType.STABLE,
        _NO_GENERATION,
        to_state=(GroupState.EMPTY if is_empty else GroupState.STABLE).value,
        at_ms=at_ms,
        leader_id=classic.leader_id,
        protocol_name=classic.protocol_name,
        members=[m.member_id for m in sighting.before],
        assignments={m.member_id: m.assignment for m in sighting.before},
    )
