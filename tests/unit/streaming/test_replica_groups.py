"""The groups in a replica's memory: how many are decoded. `test_replica_life.py` has which are due."""

import pytest

from checkpoints import codec
from state.config import Configs
from state.dispatch import step
from state.kafka.classic_group import ClassicGroup
from streaming.query.handling import DecodedGroup
from streaming.replica.groups import ReplicaGroups
from tests.harness.replica_log import CONFIG

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
