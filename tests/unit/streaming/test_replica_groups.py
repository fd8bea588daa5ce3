"""The groups in a replica's memory: how many are decoded, and which are due."""

import pytest

from checkpoints import codec
from state.config import Configs
from state.dispatch import step
from state.kafka.classic_group import ClassicGroup
from streaming.query.handling import DecodedGroup
from streaming.replica.groups import ReplicaGroups
from streaming.replica.state_machine import Record as LogRecord
from tests.harness.replica_log import CONFIG, machine, owned
from tests.spark.log import T0, Log, heartbeat

NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("decoded_max", [1, 2, 3])
def test_least_recently_used_groups_over_the_limit_are_encoded(decoded_max: int) -> None:
    woken = []

    def decode(group_id: str, entry: codec.StoredGroup | None) -> DecodedGroup:
        woken.append(group_id)
        return DecodedGroup(group_id, entry, Configs(CONFIG), (), step)

    entries = {name: codec.encode_group(ClassicGroup(name, "requests-0-0"), None) for name in NAMES}
    groups = ReplicaGroups(entries, decode, decoded_max=decoded_max)
    for name in (*NAMES, *reversed(NAMES)):
        groups.decoded(name)
    assert woken == [*NAMES, *reversed(NAMES[:-decoded_max])]
    assert len(groups) == len(NAMES)


@pytest.mark.parametrize("decoded_max", [1, 10])
def test_postponed_deadline_is_rescheduled_when_the_earlier_one_is_due(decoded_max: int) -> None:
    """A session of 10 s is prolonged after 5 s. Each record comes behind a clock record of 1 ms before."""
    log, replica = Log(), machine(decoded_max=decoded_max)
    records, member_id = log.stable_member(T0, "a", session_ms=10_000)
    records.append(log.request(T0 + 5_000, heartbeat("a", member_id)))
    records += [log.request(T0 + at_ms, heartbeat("b", "nobody")) for at_ms in (10_001, 15_000, 15_001)]
    has_member = []
    for record in owned(records):
        replica.apply(LogRecord(*record))
        group = replica.partitions[record.partition].groups.decoded("a").timeline.group
        if record.key == b"b":
            assert isinstance(group, ClassicGroup)
            has_member.append(member_id in group.members)
    assert has_member == [True, True, False]
