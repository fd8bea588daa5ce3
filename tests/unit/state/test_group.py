"""The queries on a group, its deadlines, its ids, and its view on the groups topic."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import Protocol
from state.config import CoordinatorConfig
from state.dispatch import due_deadlines, is_armed, next_deadline_ms
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, JoinPhase, PendingMember
from state.kafka.group import DeadlineReached, TimerKind

CONFIG = CoordinatorConfig()


def group_of(*offers: str) -> ClassicGroup:
    """Return a group whose members offer these protocols, `range,sticky` each."""
    group = ClassicGroup("g", "requests-0-0", state=GroupState.STABLE)
    for index, names in enumerate(offers):
        protocols = [Protocol(name) for name in names.split(",")]
        member = ClassicGroupMember(
            f"m{index}", None, "", "", 10_000, 60_000, protocols, heartbeat_deadline_ms=10_000
        )
        group.add(member, "consumer")
    return group


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from("abc"), max_size=4)), max_size=12))
def test_counted_protocols_are_those_of_the_members(changes: list[tuple[int, list[str]]]) -> None:
    """A change adds a member, or gives it other protocols, or removes it if it has none."""
    group = ClassicGroup("g", "requests-0-0", state=GroupState.PREPARING_REBALANCE, protocol_type="consumer")
    assert group.supported_protocols.members == 0
    for number, names in changes:
        member_id, protocols = f"m{number}", [Protocol(name) for name in names]
        member = group.members.get(member_id)
        if not protocols:
            group.remove(member_id)
        elif member is not None:
            group.set_protocols(member, protocols)
        else:
            group.add(ClassicGroupMember(member_id, None, "", "", 10_000, 60_000, protocols), "consumer")
        offered = [{p.name for p in m.protocols} for m in group.members.values()]
        for name in "abc":
            fits = group.supports_protocols("consumer", [Protocol(name)])
            assert fits is all(name in names for names in offered)
        assert group.supported_protocols == replace(group).supported_protocols
        shared = set.intersection(*offered) if offered else set()
        if shared:
            first = [[p.name for p in m.protocols if p.name in shared] for m in group.members.values()]
            votes = Counter(names[0] for names in first)
            assert group.select_protocol() == max(first[0], key=lambda name: votes[name])


def test_due_deadlines_are_in_order_and_ties_have_an_order() -> None:
    group = group_of("range", "range")
    assert next_deadline_ms(ClassicGroup("g", "requests-0-0"), CONFIG) is None
    group.pending_members["p0"] = PendingMember("", "", 9_000)
    group.sync_deadline_ms = 9_000
    group.retention_deadline_ms = 9_001
    group.members["m1"].heartbeat_deadline_ms = 9_000
    of_pending = DeadlineReached(9_000, TimerKind.HEARTBEAT, "p0")
    of_m1 = DeadlineReached(9_000, TimerKind.HEARTBEAT, "m1")
    sync = DeadlineReached(9_000, TimerKind.SYNC)
    retention = DeadlineReached(9_001, TimerKind.RETENTION)
    assert due_deadlines(group, 8_999, CONFIG) == []
    assert due_deadlines(group, 9_999, CONFIG) == [of_m1, of_pending, sync, retention]
    group.members["m0"].heartbeat_deadline_ms = 9_000
    of_m0 = DeadlineReached(9_000, TimerKind.HEARTBEAT, "m0")
    assert due_deadlines(group, 9_000, CONFIG) == [of_m0, of_m1, of_pending, sync]
    group.join_phase = JoinPhase(8_999, 1, None)
    join = DeadlineReached(8_999, TimerKind.JOIN)
    assert due_deadlines(group, 9_000, CONFIG)[0] == join
    assert next_deadline_ms(group, CONFIG) == 8_999
    assert all(is_armed(group, due, CONFIG) for due in due_deadlines(group, 9_999, CONFIG))
    group.quarantined = "a fault"
    assert next_deadline_ms(group, CONFIG) is None
    assert due_deadlines(group, 9_999, CONFIG) == []
    assert not is_armed(group, of_m0, CONFIG)
