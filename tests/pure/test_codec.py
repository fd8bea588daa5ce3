"""The stored state: strict, stable to the byte, and readable for ever.

`tests/data/state_v<version>.msgpack` is a state row's payload of that version, `state_v<version>.txt` the
fields it is made of. They are written once (`--rewrite` writes those that are missing) and never change.
"""

import inspect
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from checkpoints import codec
from checkpoints.codec import STATE_VERSION, StateError, decode, encode
from state.group import Group, GroupState, JoinPhase, Member, Offset, PendingMember
from state.messages import Protocol, ReplyTo

DATA = Path(__file__).parents[1] / "data"
PINNED = sorted(DATA.glob("state_v*.msgpack"))
STORED = (Group, Member, PendingMember, JoinPhase, Offset, Protocol, ReplyTo)


def sample() -> Group:
    """A group in which every field is something else than its default."""
    member = Member(
        member_id="m-1",
        group_instance_id="i-1",
        client_id="m",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=[Protocol("range", b"\x00\x01"), Protocol("sticky")],
        heartbeat_deadline_ms=1_700_000_010_000,
        assignment=b"\x02",
        is_new=True,
        awaiting_sync=True,
        parked_join=ReplyTo(1, "c-1", "requests-0-1"),
        parked_sync=ReplyTo(2, "c-2", "requests-0-2"),
    )
    return Group(
        group_id="grüppe",
        incarnation="requests-0-0",
        seq=7,
        clock_ms=1_700_000_000_003,
        last_fired_ms=1_700_000_000_002,
        state=GroupState.PREPARING_REBALANCE,
        previous_state=GroupState.STABLE,
        state_timestamp_ms=1_700_000_000_001,
        generation=3,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="m-1",
        members={"m-1": member},
        static_members={"i-1": "m-1"},
        pending_members={"p-1": PendingMember("p", "/10.0.0.2", 1_700_000_020_000)},
        new_member_added=True,
        join_phase=JoinPhase(1_700_000_003_000, 3_000, 57_000),
        sync_deadline_ms=1_700_000_060_000,
        last_rebalance_at_ms=1_700_000_000_000,
        last_rebalance_reason="new member m-1 joined",
        quarantined="InjectedFault: told to",
        subscribed_topics=["t"],
        offsets={"t": {0: Offset(5, 1, "note", 1_700_000_000_001, 1_700_000_900_000)}},
        retention_deadline_ms=1_700_001_000_000,
    )


def stored_fields() -> str:
    """Every stored field in its order, with its type and default: what a payload's meaning hangs on."""
    lines = [f"GroupState: {' '.join(GroupState)}"]
    for stored in STORED:
        config = stored.__struct_config__
        lines.append(f"{stored.__name__}: {'array' if config.array_like else 'map'}")
        hints = inspect.get_annotations(stored)
        lines += [f"  {f.name}: {_name(hints[f.name])}" for f in msgspec.structs.fields(stored)]
    return "\n".join(lines) + "\n"


def _name(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def test_no_field_of_the_sample_is_left_at_its_default() -> None:
    group = sample()
    for struct in (group, group.members["m-1"]):
        for field in msgspec.structs.fields(struct):
            assert getattr(struct, field.name) != field.default, field.name


def test_every_struct_of_a_group_is_known_here() -> None:
    """A new struct in the state has to be listed in STORED, or a change of it would go unseen."""
    schema = msgspec.json.schema(Group)
    assert set(schema["$defs"]) - {"GroupState"} == {stored.__name__ for stored in STORED}


def test_the_stored_fields_are_those_of_the_version(request: pytest.FixtureRequest) -> None:
    path = DATA / f"state_v{STATE_VERSION}.txt"
    if request.config.getoption("rewrite") and not path.exists():
        path.write_text(stored_fields())
    assert stored_fields() == path.read_text(), (
        f"the layout of the state changed: raise STATE_VERSION, migrate from version {STATE_VERSION}, "
        "and run this test with --rewrite"
    )


def test_the_pinned_payload_of_this_version_is_this_sample(request: pytest.FixtureRequest) -> None:
    path = DATA / f"state_v{STATE_VERSION}.msgpack"
    version, payload = encode({"grüppe": sample()})
    if request.config.getoption("rewrite") and not path.exists():
        path.write_bytes(payload)
    assert version == STATE_VERSION
    assert payload == path.read_bytes()


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_every_pinned_payload_is_read(path: Path) -> None:
    version = int(path.stem.removeprefix("state_v"))
    assert decode("grüppe", version, path.read_bytes()) == {"grüppe": sample()}


def test_every_version_is_pinned() -> None:
    assert [path.stem for path in PINNED] == [f"state_v{n}" for n in range(1, STATE_VERSION + 1)]


def test_several_groups_can_stand_under_one_key() -> None:
    groups = {"a": Group("a", "requests-0-0"), "b": Group("b", "requests-0-1")}
    assert decode("shard 0", *encode(groups)) == groups
    assert decode("shard 0", *encode({})) == {}


def test_what_is_decoded_is_encoded_to_the_same_bytes() -> None:
    row = encode({"grüppe": sample()})
    assert encode(decode("grüppe", *row)) == row


@pytest.mark.parametrize("version", [0, STATE_VERSION + 1, -1])
def test_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(StateError, match=f"the state of 'g' is of version {version}; .* reads version"):
        decode("g", version, b"")


def _row_with(*fields: object) -> bytes:
    return msgspec.msgpack.encode({"g": fields})


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", r"the state of 'g' \(version 1\) is damaged"),
        (b"\xc1", r"the state of 'g' \(version 1\) is damaged"),
        (msgspec.msgpack.encode(["g"]), r"the state of 'g' \(version 1\) is damaged"),
        (encode({"g": Group("g", "i")})[1][:-1], r"the state of 'g' \(version 1\) is damaged"),
        (encode({"g": Group("g", "i")})[1] + b"\x00", r"the state of 'g' \(version 1\) is damaged"),
        (_row_with("g"), r"the state of group 'g' \(version 1\) is damaged: .* at least length 2"),
        (_row_with("g", "i", "seven"), r"the state of group 'g' \(version 1\) is damaged"),
        (_row_with("g", "i", 0, 0, 0, "Dead"), r"the state of group 'g' \(version 1\) is damaged: .*'Dead'"),
        (_row_with("h", "i"), r"the state of group 'g' \(version 1\) holds group 'h'"),
    ],
)
def test_a_damaged_payload_is_refused_by_name(payload: bytes, why: str) -> None:
    with pytest.raises(StateError, match=why):
        decode("g", 1, payload)


def test_a_payload_with_more_fields_than_known_is_refused() -> None:
    """It was written by newer code that forgot to raise the version; reading on would lose what it wrote."""
    fields = msgspec.msgpack.decode(encode({"g": sample_named("g")})[1])["g"]
    with pytest.raises(StateError, match="is damaged"):
        decode("g", 1, msgspec.msgpack.encode({"g": [*fields, "one more"]}))


def sample_named(group_id: str) -> Group:
    return msgspec.structs.replace(sample(), group_id=group_id)


def test_the_row_has_the_columns_of_sparks_schema() -> None:
    columns = [column.split() for column in codec.STATE_SCHEMA.split(", ")]
    assert columns == [["version", "int"], ["payload", "binary"]]
    version, payload = encode({})
    assert (type(version), type(payload)) == (int, bytes)
