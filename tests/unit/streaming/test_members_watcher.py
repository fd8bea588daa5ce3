"""The views of groups which show that a member may wait for a deadline."""

import json

import pytest

from streaming.service.clock.ticker import GroupsWithMembers

EMPTY = {"members": [], "pending_members": [], "protocol_type": "consumer", "state": "Empty"}
EMPTY_ROCKETMQ = {"protocol": "RocketMQ", "consumers": [], "producers": []}


@pytest.mark.parametrize(
    "view",
    [
        EMPTY | {"members": [{"member_id": "m"}]},
        EMPTY | {"pending_members": ["m"]},
        EMPTY_ROCKETMQ | {"consumers": [{"connection": "c"}]},
        EMPTY_ROCKETMQ | {"producers": [{"connection": "c"}]},
        EMPTY_ROCKETMQ | {"truncated": True},
    ],
)
def test_group_has_members_until_it_is_empty_or_deleted(view: dict[str, object]) -> None:
    groups = GroupsWithMembers()
    for last in (json.dumps(EMPTY).encode(), None):
        groups.apply(b"group", json.dumps(view).encode())
        groups.apply(b"other", json.dumps(EMPTY).encode())
        groups.apply(b"rocketmq", json.dumps(EMPTY_ROCKETMQ).encode())
        assert groups
        groups.apply(b"group", last)
        assert not groups


def test_view_that_cannot_be_decoded_may_have_members() -> None:
    groups = GroupsWithMembers()
    groups.apply(b"group", b"\xff")
    assert groups
