"""The stored state: strict, byte-stable, and readable for ever.

`tests/data/state_v<version>.msgpack` is a state row's payload of that version, with a group of each kind, in
which no field has its default. `state_v<version>.txt` lists the fields of the current one. `--rewrite` writes
missing files, the payload from that of the version before and NEW_FIELDS. Existing files never change.
`tests.harness.planted_version` has earlier versions.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pytest
from msgspec import NODEFAULT, structs

from checkpoints import codec
from checkpoints.codec import EARLIER, STATE_VERSION, StateError, StoredGroup
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.modern_group import ModernGroup
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness.planted_version import ADDED, entry_of, planted, row_of

DATA = Path(__file__).parents[2] / "data"
NEW_FIELDS: dict[type, dict[str, Any]] = {}
"""The fields that the next version's payload has in addition, by their struct, with their values."""
NEW_GROUPS: dict[str, AnyGroup] = {}
"""The groups that the next version's payload has in addition. The fields of all groups are those of the share
group.
"""
# The first version that has a kind of groups, if it is not 3.
_ADDED_IN: dict[type, int] = {StreamsGroup: 4}
CLASSIC = "grüppe"
"""The classic group of the payload."""
DEADLINE_MS = 1_700_000_000_500


def encode(groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    """Return the row of a shard with these groups."""
    return codec.write_row({name: codec.encode_group(group, DEADLINE_MS) for name, group in groups.items()})


def decode(key: str, version: int, payload: bytes) -> dict[str, AnyGroup]:
    """All groups of a row."""
    entries = codec.read_row(key, version, payload)
    return {name: codec.decode_group(name, entry) for name, entry in entries.items()}


def samples() -> dict[str, AnyGroup]:
    """Return the groups of the current version's payload."""
    return decode("g", STATE_VERSION, payload_of(STATE_VERSION).read_bytes())


def payload_of(version: int) -> Path:
    return DATA / f"state_v{version}.msgpack"


def structs_in(value: object) -> Iterator[msgspec.Struct]:
    """Yield the structs in a stored value, itself first."""
    if isinstance(value, msgspec.Struct):
        yield value
        value = structs.asdict(value)
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from structs_in(item)


def stored_fields() -> str:
    """Every stored field in order, with its type. A payload's meaning depends on them."""
    lines = []
    for stored in sorted(types_in(AnyGroup), key=lambda it: it.__name__):
        if issubclass(stored, Enum):
            lines.append(f"{stored.__name__}: {' '.join(stored)}")
            continue
        config = getattr(stored, "__struct_config__", None)
        tag = f", begins with {config.tag}" if config is not None and config.tag else ""
        layout = "map" if config is not None and not config.array_like else "array"
        lines.append(f"{stored.__name__}: {layout}{tag}")
        lines += [f"  {name}: {_name(hint)}" for name, hint in _fields(stored).items()]
    return "\n".join(lines) + "\n"


def types_in(hint: Any) -> set[type[Any]]:
    """Return the structs, named tuples and enums in a type."""
    if parts := get_args(hint):
        return set().union(*map(types_in, parts))
    if not isinstance(hint, type) or not (issubclass(hint, Enum) or hasattr(hint, "__match_args__")):
        return set()
    return {hint}.union(*map(types_in, _fields(hint).values()))


def _fields(stored: type) -> dict[str, object]:
    """Return the fields with their types, those of the base classes first."""
    if issubclass(stored, msgspec.Struct):
        return {one.name: None if one.type is NoneType else one.type for one in structs.fields(stored)}
    hints: dict[str, object] = {}
    for base in reversed(stored.__mro__):
        hints |= inspect.get_annotations(base)
    names = getattr(stored, "__struct_fields__", hints)
    return {name: hints[name] for name in names}


def _name(hint: object) -> str:
    """Return the type's name without the modules of its parts, because a module may move without changing
    stored bytes.
    """
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(hint))


def test_pinned_payload_sets_every_field() -> None:
    """Of a struct that is there several times, in one of them. `quarantined` of settings can only be None."""
    has_value: dict[str, bool] = defaultdict(bool)
    for struct in structs_in(samples()):
        for field in structs.fields(struct):
            default = field.default if field.default_factory is NODEFAULT else field.default_factory()
            has_value[f"{type(struct).__name__}.{field.name}"] |= getattr(struct, field.name) != default
    at_default = {name for name, has in has_value.items() if not has}
    assert at_default == {"ConfigsOnly.quarantined"}


def test_stored_fields_match_the_state_version(request: pytest.FixtureRequest) -> None:
    path = DATA / f"state_v{STATE_VERSION}.txt"
    if request.config.getoption("rewrite") and not path.exists():
        path.write_text(stored_fields())
    assert stored_fields() == path.read_text(), (
        f"the layout of a group changed: raise STATE_VERSION, enter version {STATE_VERSION} into "
        "checkpoints.codec.EARLIER, and run this test with --rewrite"
    )


def test_groups_are_still_encoded_as_in_the_pinned_payload(request: pytest.FixtureRequest) -> None:
    path = payload_of(STATE_VERSION)
    if request.config.getoption("rewrite") and not path.exists():
        groups = decode("g", STATE_VERSION - 1, payload_of(STATE_VERSION - 1).read_bytes())
        for struct in structs_in(groups):
            for name, value in NEW_FIELDS.get(type(struct), {}).items():
                structs.force_setattr(struct, name, value)
        like = next(group for group in groups.values() if isinstance(group, ShareGroup))
        for group in NEW_GROUPS.values():
            for name in {*ModernGroup.__struct_fields__} - {"group_id", "members"}:
                structs.force_setattr(group, name, getattr(like, name))
        path.write_bytes(encode(groups | NEW_GROUPS)[1])
    version, payload = encode(samples())
    assert version == STATE_VERSION
    # Another version of the library may compress to other bytes.
    assert codec.read_row("g", version, payload) == codec.read_row("g", version, path.read_bytes())


def test_every_state_version_has_a_readable_pinned_payload() -> None:
    assert sorted(EARLIER) == list(range(3, STATE_VERSION))
    pinned = {int(path.stem.removeprefix("state_v")): path for path in DATA.glob("state_v*.msgpack")}
    assert sorted(pinned) == [*sorted(EARLIER), STATE_VERSION]
    for version, path in pinned.items():
        since = {group_id: _ADDED_IN.get(type(group), 3) for group_id, group in samples().items()}
        known = {group_id for group_id, first in since.items() if first <= version}
        assert decode("shard 0", version, path.read_bytes()).keys() == known


@pytest.fixture
def earlier() -> Iterator[None]:
    """Versions 1 and 2 are read."""
    with planted():
        yield


def migrated(version: int) -> dict[str, AnyGroup]:
    """Return what the groups of a planted version become."""
    groups = samples()
    group = groups[CLASSIC]
    assert isinstance(group, ClassicGroup)
    group.wanted_topics = [ADDED]
    if version == 1:
        group.topics = {}
    return groups


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.usefixtures("earlier")
def test_state_row_of_an_earlier_version_is_read_and_migrated(version: int) -> None:
    assert decode("shard 0", *row_of(version, samples())) == migrated(version)


@pytest.mark.parametrize("other", [1, 2, STATE_VERSION])
@pytest.mark.parametrize("version", [1, 2, STATE_VERSION])
@pytest.mark.usefixtures("earlier")
def test_group_labelled_with_another_state_version_is_refused(version: int, other: int) -> None:
    entry = msgspec.structs.replace(entry_of(version, samples()[CLASSIC]), version=other)
    if version == other:
        codec.decode_group(CLASSIC, entry)
    else:
        with pytest.raises(StateError, match=rf"group 'grüppe' \(version {other}\) is damaged"):
            codec.decode_group(CLASSIC, entry)


@pytest.mark.usefixtures("earlier")
def test_unchanged_group_keeps_its_stored_bytes() -> None:
    """Also bytes of an earlier version: only a group that is touched is migrated."""
    old = codec.read_row("g", *row_of(2, samples()))
    row = codec.write_row({**old, "new": codec.encode_group(ClassicGroup("new", "i"), None)})
    again = codec.read_row("shard 0", *row)
    assert {name: again[name] for name in old} == old
    assert codec.write_row(again) == row


@pytest.mark.parametrize("version", [2, STATE_VERSION + 1, -1])
def test_other_state_version_is_refused_by_name(version: int) -> None:
    with pytest.raises(StateError, match=f"the state of 'g' is of version {version}; .* version 3"):
        codec.read_row("g", version, b"")
    with pytest.raises(StateError, match=f"group 'g' is of version {version}; this code reads version 3"):
        codec.decode_group("g", StoredGroup(version, None, b""))


def _group_of(*fields: object) -> StoredGroup:
    return StoredGroup(STATE_VERSION, None, msgspec.msgpack.encode(fields))


def _fields_in_state(state: str) -> list[object]:
    """Return the fields of a classic group in this state."""
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
        encode({"g": ClassicGroup("g", "i")})[1][4:],
        encode({"g": ClassicGroup("g", "i")})[1][:-1],
        _compressed(["g"]),
        *(_compressed({"g": e}) for e in ([], [1, None], [1, None, WHOLE, 0], [1, "x", WHOLE])),
    ],
)
def test_damaged_state_row_is_refused_by_name(payload: bytes) -> None:
    with pytest.raises(StateError, match=r"the state of 'shard 7' \(version 4\) is damaged"):
        codec.read_row("shard 7", STATE_VERSION, payload)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (StoredGroup(STATE_VERSION, None, b""), "is damaged"),
        (StoredGroup(STATE_VERSION, None, WHOLE[:-1]), "is damaged"),
        (StoredGroup(STATE_VERSION, None, WHOLE + b"\x00"), "is damaged"),
        (_group_of("g", "i"), "is damaged: Invalid value 'g'"),
        (_group_of("Pulsar", "g", "i"), "is damaged: Invalid value 'Pulsar'"),
        (_group_of("Kafka", "g"), "is damaged: .* at least length 3"),
        (_group_of("RocketMQ", "g"), "is damaged: .* at least length 3"),
        (_group_of("Kafka", "g", "i", "seven"), "is damaged"),
        (_group_of("Kafka", *_fields_in_state("Dead")), "is damaged: .*'Dead'"),
        (_group_of("RocketMQ", "g", "i", 0, 0, 0, {"b": ["Dead"]}), "is damaged: .*'Dead'"),
        (_group_of("Kafka", "g", "i"), "is damaged: it has 3 fields instead of 33"),
        (_group_of("KafkaConsumer", "g", "i"), "is damaged: it has 3 fields instead of 28"),
        (_group_of("KafkaConfigs", "g", "i", 0), "is damaged: .* at least length 5"),
        (_group_of("KafkaConfigs", "g", "i", 0, {}), "is damaged: it has 5 fields instead of 8"),
        (codec.encode_group(ClassicGroup("h", "i"), None), "holds group 'h'"),
    ],
)
def test_a_damaged_group_is_refused_by_name(entry: StoredGroup, why: str) -> None:
    with pytest.raises(StateError, match=rf"the state of group 'g' \(version 4\) {why}"):
        codec.decode_group("g", entry)


def test_a_payload_with_more_fields_than_known_is_refused() -> None:
    """Newer code wrote it without a new version. Reading it would lose the additional fields."""
    for name, group in samples().items():
        fields = msgspec.msgpack.decode(codec.encode_group(group, None).group, type=list[msgspec.Raw])
        longer = [*fields, msgspec.Raw(msgspec.msgpack.encode("one more"))]
        with pytest.raises(StateError, match="is damaged"):
            codec.decode_group(name, StoredGroup(STATE_VERSION, None, msgspec.msgpack.encode(longer)))
