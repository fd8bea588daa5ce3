"""The protocols of a classic group, which it counts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import Protocol
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember


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
