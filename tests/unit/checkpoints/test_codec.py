"""The stored state: strict, byte-stable, and readable for ever.

`tests/data/state_v<version>.msgpack` is a state row's payload of that version, `state_v<version>.txt` lists
its fields. `--rewrite` writes missing files. Existing files never change.
"""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import msgspec
import pyarrow as pa
import pytest
from msgspec import structs

from assignors.rocketmq.api import MessageRequestMode
from assignors.rocketmq.message_queue import MessageQueue
from checkpoints import codec
from checkpoints.codec import GROUP_VERSION, STATE_VERSION, Entry, StateError
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup, GroupState, JoinPhase, Member, PendingMember
from state.kafka.group import NO_POSITION, Ended, Offset, PendingOffsets, Topic
from state.kafka.requests import Protocol, ReplyTo
from state.rocketmq import group as rocketmq
from state.rocketmq.requests import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData

DATA = Path(__file__).parents[2] / "data"
PINNED = sorted(DATA.glob("state_v*.msgpack"))
STORED = {
    ClassicGroup: (
        ClassicGroup,
        Member,
        PendingMember,
        JoinPhase,
        Offset,
        PendingOffsets,
        Ended,
        Protocol,
        ReplyTo,
        Topic,
    ),
    rocketmq.Group: (
        rocketmq.Group,
        rocketmq.ClientChannelInfo,
        rocketmq.LockEntry,
        rocketmq.RequestMode,
        SubscriptionData,
        MessageQueue,
    ),
}
DEADLINE_MS = 1_700_000_000_500
# The version of the groups in the pinned payload of a version of the row.
GROUP_VERSION_OF = {1: 1, 2: 2, 3: 3, 4: 3, 5: 4}
ENUMS = (GroupState, MessageModel, ConsumeType, ConsumeFromWhere, MessageRequestMode)


def sample() -> ClassicGroup:
    """A group in which no field has its default."""
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
        pending_sync=True,
        parked_join=ReplyTo(1, "c-1", "requests-0-1"),
        parked_sync=ReplyTo(2, "c-2", "requests-0-2"),
    )
    offset = Offset(6, 1, "note", 1_700_000_000_002, None, b"\x07" * 16, (5, 3))
    pending = PendingOffsets(
        request="requests-0-5#3",
        position=(5, 3),
        at_ms=1_700_000_000_002,
        transactional_id="t-1",
        producer_id=4001,
        producer_epoch=7,
        txn_version=2,
        txn_partition=1,
        txn_position=41,
        txn_topic_id=b"\x05" * 16,
        offsets={"t": {0: offset}},
    )
    return ClassicGroup(
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
        offsets={"t": {0: Offset(5, 1, "note", 1_700_000_000_001, 1_700_000_900_000, b"\x07" * 16, (4, 2))}},
        retention_deadline_ms=1_700_001_000_000,
        partitions_per_topic={"t": 4},
        reported_partition_counts={"t": 5},
        deleted_topic_ids=[b"\x03" * 16],
        pending=[pending],
        ended={4001: Ended(1, 40, b"\x05" * 16, 1_700_000_000_002)},
        topics={"t": Topic(b"\x07" * 16, 4), "gone": None},
        wanted_topics=["u"],
    )


def rocketmq_sample() -> rocketmq.Group:
    """The same for a RocketMQ group."""
    return rocketmq.Group(
        group_id="rüpel",
        incarnation="requests-0-3",
        seq=7,
        clock_ms=1_700_000_000_003,
        last_fired_ms=1_700_000_000_002,
        message_model=MessageModel.CLUSTERING,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        channels={"c-1": rocketmq.ClientChannelInfo("X", "PYTHON", 1, 1_700_000_000_001, 2)},
        subscriptions={"t": SubscriptionData("t", "a > 1", 5, "SQL92", ("a", "b"), (97, 98))},
        heartbeat_fingerprint=3,
        producers={"c-2": rocketmq.ClientChannelInfo("Y", "JAVA", 2, 1_700_000_000_000, 1)},
        locks={MessageQueue("t", "b", 0): rocketmq.LockEntry("X", 1_700_000_000_001)},
        request_modes={"t": rocketmq.RequestMode(MessageRequestMode.POP, 2)},
        quarantined="InjectedFault: told to",
    )


def encode(groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    """The row of a shard with these groups."""
    return codec.write_row({name: codec.encode_group(group, DEADLINE_MS) for name, group in groups.items()})


def decode(key: str, version: int, payload: bytes) -> dict[str, AnyGroup]:
    """All groups of a row."""
    entries = codec.read_row(key, version, payload)
    return {name: codec.decode_group(name, entry) for name, entry in entries.items()}


def samples(version: int = GROUP_VERSION) -> dict[str, AnyGroup]:
    """Both groups, with the fields that this version has."""
    group = sample()
    if version < 2:
        group.partitions_per_topic, group.reported_partition_counts = {}, {}
    if version < 3:
        group.offsets["t"][0] = structs.replace(group.offsets["t"][0], topic_id=None)
        group.deleted_topic_ids = []
    if version < 4:
        group.offsets["t"][0] = structs.replace(group.offsets["t"][0], position=NO_POSITION)
        group.pending, group.ended = [], {}
    return {"grüppe": group, "rüpel": rocketmq_sample()}


def stored_fields() -> str:
    """Every stored field in order, with its type and default. A payload's meaning depends on them."""
    lines = [f"{enum.__name__}: {' '.join(enum)}" for enum in ENUMS]
    for group, parts in STORED.items():
        lines.append(f"begins with {group.__struct_config__.tag}:")
        for stored in parts:
            lines.append(f"{stored.__name__}: {_layout(stored)}")
            lines += [f"  {name}: {_name(hint)}" for name, hint in inspect.get_annotations(stored).items()]
    return "\n".join(lines) + "\n"


def _layout(stored: type) -> str:
    config = getattr(stored, "__struct_config__", None)
    return "map" if config is not None and not config.array_like else "array"


def _name(hint: object) -> str:
    """The type's name without the modules of its parts, because a module may move without changing stored
    bytes.
    """
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(hint))


def test_no_field_of_the_samples_is_left_at_its_default() -> None:
    group, other = sample(), rocketmq_sample()
    for struct in (group, group.members["m-1"], other, other.subscriptions["t"]):
        for field in structs.fields(struct):
            assert getattr(struct, field.name) != field.default, field.name


@pytest.mark.parametrize("group", STORED)
def test_every_struct_of_a_group_is_known_here(group: type[AnyGroup]) -> None:
    """A new struct in the state must be listed in STORED, or the test would miss its changes."""
    schema = msgspec.json.schema(group)
    enums = {enum.__name__ for enum in ENUMS}
    assert set(schema["$defs"]) - enums == {stored.__name__ for stored in STORED[group]}


def test_the_stored_fields_are_those_of_the_version(request: pytest.FixtureRequest) -> None:
    path = DATA / f"state_v{GROUP_VERSION}.txt"
    if request.config.getoption("rewrite") and not path.exists():
        path.write_text(stored_fields())
    assert stored_fields() == path.read_text(), (
        f"the layout of a group changed: raise GROUP_VERSION, migrate from version {GROUP_VERSION}, "
        "and run this test with --rewrite"
    )


def test_the_pinned_payload_of_this_version_is_this_sample(request: pytest.FixtureRequest) -> None:
    path = DATA / f"state_v{STATE_VERSION}.msgpack"
    version, payload = encode(samples())
    if request.config.getoption("rewrite") and not path.exists():
        path.write_bytes(payload)
    assert version == STATE_VERSION
    # Another version of the library may compress to other bytes.
    assert codec.read_row("g", version, payload) == codec.read_row("g", version, path.read_bytes())


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.stem)
def test_every_pinned_payload_is_read(path: Path) -> None:
    version = int(path.stem.removeprefix("state_v"))
    assert decode("shard 0", version, path.read_bytes()) == samples(GROUP_VERSION_OF[version])


def pinned(group_version: int, name: str) -> bytes:
    """The pinned encoding of a group in a version of its own."""
    version = next(row for row, of_groups in GROUP_VERSION_OF.items() if of_groups == group_version)
    row = codec.read_row("shard 0", version, (DATA / f"state_v{version}.msgpack").read_bytes())
    return row[name].group


@pytest.mark.parametrize("name", samples())
@pytest.mark.parametrize("other", range(1, GROUP_VERSION + 1))
@pytest.mark.parametrize("version", range(1, GROUP_VERSION + 1))
def test_a_group_of_one_version_is_refused_under_another(version: int, other: int, name: str) -> None:
    """The group must differ between the versions. RocketMQ's group is the same in all of them."""
    entry = Entry(other, None, pinned(version, name))
    if version == other or isinstance(samples()[name], rocketmq.Group):
        assert codec.decode_group(name, entry) == samples(version)[name]
    else:
        with pytest.raises(StateError, match=rf"group '{name}' \(version {other}\) is damaged"):
            codec.decode_group(name, entry)


def test_groups_of_earlier_rows_are_due_at_once() -> None:
    """Rows of versions 1 to 3 have no deadlines. A deadline in the past makes the first call search it."""
    for version in range(1, 4):
        entries = codec.read_row("g", version, (DATA / f"state_v{version}.msgpack").read_bytes())
        assert {entry.next_deadline_ms for entry in entries.values()} == {codec.UNKNOWN_DEADLINE_MS}
        assert {entry.version for entry in entries.values()} == {version}


def test_a_group_that_rests_keeps_its_bytes() -> None:
    """Also bytes of an earlier version: only a group that is touched is migrated."""
    old = codec.read_row("g", 2, (DATA / "state_v2.msgpack").read_bytes())
    row = codec.write_row({**old, "new": codec.encode_group(ClassicGroup("new", "i"), None)})
    again = codec.read_row("shard 0", *row)
    assert {name: again[name] for name in old} == old
    assert codec.write_row(again) == row


def test_an_offset_of_an_earlier_version_precedes_every_request() -> None:
    for version in (1, 2, 3, 4):
        group = decode("shard 0", version, (DATA / f"state_v{version}.msgpack").read_bytes())["grüppe"]
        assert isinstance(group, ClassicGroup)
        assert [offset.position < (0, 0) for offset in group.offsets["t"].values()] == [True]


def test_an_offset_of_an_earlier_version_is_of_an_unknown_topic() -> None:
    for version in (1, 2):
        group = decode("shard 0", version, (DATA / f"state_v{version}.msgpack").read_bytes())["grüppe"]
        assert isinstance(group, ClassicGroup)
        assert [offset.topic_id for offset in group.offsets["t"].values()] == [None]


def test_every_version_is_pinned() -> None:
    assert [path.stem for path in PINNED] == [f"state_v{n}" for n in range(1, STATE_VERSION + 1)]


def test_several_groups_can_stand_under_one_key() -> None:
    groups: dict[str, AnyGroup] = {
        "a": ClassicGroup("a", "requests-0-0"),
        "b": rocketmq.Group("b", "requests-0-1"),
    }
    assert decode("shard 0", *encode(groups)) == groups
    assert decode("shard 0", *encode({})) == {}


def test_what_is_decoded_is_encoded_to_the_same_bytes() -> None:
    row = encode(samples())
    assert encode(decode("shard 0", *row)) == row


@pytest.mark.parametrize("version", [0, STATE_VERSION + 1, -1])
def test_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(StateError, match=f"the state of 'g' is of version {version}; .* reads versions"):
        codec.read_row("g", version, b"")


def _group_of(*fields: object) -> Entry:
    return Entry(GROUP_VERSION, None, msgspec.msgpack.encode(fields))


WHOLE = codec.encode_group(ClassicGroup("g", "i"), None).group


def _compressed(content: object) -> bytes:
    encoded = msgspec.msgpack.encode(content)
    compressed: bytes = pa.compress(encoded, codec="zstd", asbytes=True)
    return len(encoded).to_bytes(4) + compressed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x00",
        b"\xc1",
        b"\xff" * 9,
        encode(samples())[1][4:],
        encode(samples())[1][:-1],
        _compressed(["g"]),
        *(_compressed({"g": e}) for e in ([], [4, None], [4, None, WHOLE, 0], [4, "x", WHOLE])),
    ],
)
def test_a_damaged_row_is_refused_by_name(payload: bytes) -> None:
    with pytest.raises(StateError, match=r"the state of 'shard 7' \(version 5\) is damaged"):
        codec.read_row("shard 7", STATE_VERSION, payload)


def test_groups_that_resemble_each_other_take_little_space() -> None:
    groups: dict[str, AnyGroup] = {}
    for n in range(100):
        group = sample()
        group.group_id = f"group-{n}"
        groups[group.group_id] = group
    assert len(encode(groups)[1]) < len(codec.encode_group(sample(), None).group) * len(groups) / 10


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry(GROUP_VERSION, None, b""), "is damaged"),
        (Entry(GROUP_VERSION, None, WHOLE[:-1]), "is damaged"),
        (Entry(GROUP_VERSION, None, WHOLE + b"\x00"), "is damaged"),
        (_group_of("g", "i"), "is damaged: Invalid value 'g'"),
        (_group_of("Pulsar", "g", "i"), "is damaged: Invalid value 'Pulsar'"),
        (_group_of("Kafka", "g"), "is damaged: .* at least length 3"),
        (_group_of("RocketMQ", "g"), "is damaged: .* at least length 3"),
        (_group_of("Kafka", "g", "i", "seven"), "is damaged"),
        (_group_of("Kafka", "g", "i", 0, 0, 0, "Dead"), "is damaged: .*'Dead'"),
        (_group_of("RocketMQ", "g", "i", 0, 0, 0, "Dead"), "is damaged: .*'Dead'"),
        (_group_of("Kafka", "g", "i"), "is damaged: it has 3 fields instead of 30"),
        (codec.encode_group(ClassicGroup("h", "i"), None), "holds group 'h'"),
    ],
)
def test_a_damaged_group_is_refused_by_name(entry: Entry, why: str) -> None:
    with pytest.raises(StateError, match=rf"the state of group 'g' \(version 4\) {why}"):
        codec.decode_group("g", entry)


@pytest.mark.parametrize("version", [0, GROUP_VERSION + 1])
def test_a_group_of_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(
        StateError, match=f"group 'g' is of version {version}; this code reads versions 1 to 4"
    ):
        codec.decode_group("g", Entry(version, None, WHOLE))


@pytest.mark.parametrize("name", samples())
def test_a_payload_with_more_fields_than_known_is_refused(name: str) -> None:
    """Newer code wrote it without a new version. Reading it would lose the additional fields."""
    fields = msgspec.msgpack.decode(codec.encode_group(samples()[name], None).group, type=list[msgspec.Raw])
    longer = [*fields, msgspec.Raw(msgspec.msgpack.encode("one more"))]
    with pytest.raises(StateError, match="is damaged"):
        codec.decode_group(name, Entry(GROUP_VERSION, None, msgspec.msgpack.encode(longer)))


def test_the_row_has_the_columns_of_sparks_schema() -> None:
    columns = [column.split() for column in codec.STATE_SCHEMA.split(", ")]
    assert columns == [["version", "int"], ["payload", "binary"]]
    version, payload = encode({})
    assert (type(version), type(payload)) == (int, bytes)
