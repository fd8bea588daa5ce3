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

from checkpoints import codec
from checkpoints.codec import GROUP_VERSION, STATE_VERSION, Entry, StateError
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.configs_only import ConfigsOnly
from state.rocketmq import group as rocketmq
from tests.harness.stored_groups import (
    ENUMS,
    STORED,
    configs_sample,
    consumer_sample,
    rocketmq_sample,
    sample,
    samples,
)

DATA = Path(__file__).parents[2] / "data"
PINNED = sorted(DATA.glob("state_v*.msgpack"))
DEADLINE_MS = 1_700_000_000_500
# The version of the groups in the pinned payload of a version of the row.
GROUP_VERSION_OF = {1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 6: 5, 7: 6}


def encode(groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    """The row of a shard with these groups."""
    return codec.write_row({name: codec.encode_group(group, DEADLINE_MS) for name, group in groups.items()})


def decode(key: str, version: int, payload: bytes) -> dict[str, AnyGroup]:
    """All groups of a row."""
    entries = codec.read_row(key, version, payload)
    return {name: codec.decode_group(name, entry) for name, entry in entries.items()}


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
    group, consumer, other = sample(), consumer_sample(), rocketmq_sample()
    members = group.members["m-1"], consumer.members["m-1"], consumer.members["m-1"].classic
    for struct in (group, consumer, *members, configs_sample(), other, other.subscriptions["t"]):
        for field in structs.fields(struct):  # type: ignore[arg-type]
            is_fixed = isinstance(struct, ConfigsOnly) and field.name == "quarantined"
            assert is_fixed or getattr(struct, field.name) != field.default, field.name


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


@pytest.mark.parametrize("name", samples(1))
@pytest.mark.parametrize("other", range(1, GROUP_VERSION + 1))
@pytest.mark.parametrize("version", range(1, GROUP_VERSION + 1))
def test_a_group_of_one_version_is_refused_under_another(version: int, other: int, name: str) -> None:
    """The group must differ between the versions. RocketMQ's group is the same in all of them, and a classic
    group from version 5 on.
    """
    entry = Entry(other, None, pinned(version, name))
    is_the_same = isinstance(samples()[name], rocketmq.Group) or min(version, other) >= 5
    if version == other or is_the_same:
        assert codec.decode_group(name, entry) == samples(version)[name]
    else:
        with pytest.raises(StateError, match=rf"group '{name}' \(version {other}\) is damaged"):
            codec.decode_group(name, entry)


@pytest.mark.parametrize("name", ["kümmel", "öl"])
def test_a_kind_of_group_is_refused_under_a_version_that_did_not_have_it(name: str) -> None:
    for other in range(1, GROUP_VERSION if name == "kümmel" else 5):
        with pytest.raises(StateError, match=rf"group '{name}' \(version {other}\) is damaged"):
            codec.decode_group(name, Entry(other, None, pinned(GROUP_VERSION, name)))


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


def _fields_in_state(state: str) -> list[object]:
    """The fields of a classic group in this state."""
    fields: list[object] = msgspec.to_builtins(ClassicGroup("g", "i"))[1:]
    fields[ClassicGroup.__struct_fields__.index("state")] = state
    return fields


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
        *(_compressed({"g": e}) for e in ([], [5, None], [5, None, WHOLE, 0], [5, "x", WHOLE])),
    ],
)
def test_a_damaged_row_is_refused_by_name(payload: bytes) -> None:
    with pytest.raises(StateError, match=r"the state of 'shard 7' \(version 7\) is damaged"):
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
        (_group_of("Kafka", *_fields_in_state("Dead")), "is damaged: .*'Dead'"),
        (_group_of("RocketMQ", "g", "i", 0, 0, 0, "Dead"), "is damaged: .*'Dead'"),
        (_group_of("Kafka", "g", "i"), "is damaged: it has 3 fields instead of 33"),
        (_group_of("KafkaConsumer", "g", "i"), "is damaged: it has 3 fields instead of 28"),
        (_group_of("KafkaConfigs", "g", "i", 0), "is damaged: .* at least length 5"),
        (_group_of("KafkaConfigs", "g", "i", 0, {}), "is damaged: it has 5 fields instead of 8"),
        (codec.encode_group(ClassicGroup("h", "i"), None), "holds group 'h'"),
    ],
)
def test_a_damaged_group_is_refused_by_name(entry: Entry, why: str) -> None:
    with pytest.raises(StateError, match=rf"the state of group 'g' \(version 6\) {why}"):
        codec.decode_group("g", entry)


@pytest.mark.parametrize("version", [0, GROUP_VERSION + 1])
def test_a_group_of_another_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(
        StateError, match=f"group 'g' is of version {version}; this code reads versions 1 to 6"
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
