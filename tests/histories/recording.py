"""The format of a recorded history, and a state as JSON."""

import base64
import lzma
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

FOLDER = Path(__file__).parent


class InputRecord(Struct, frozen=True, array_like=True):
    """A record of the requests topic. No record here is a clock record."""

    partition: int
    offset: int
    at_ms: int
    key: str
    value: str


class OutputRecord(Struct, frozen=True, array_like=True):
    """A record that the operator wrote. `partition` -1: by the key. `value` is None for a tombstone."""

    topic: str
    partition: int
    key: str | None
    value: str | None


class StateRow(Struct, frozen=True, array_like=True):
    """A row of the keyed state: the stored state of a shard, by the shard's number."""

    shard: int
    version: int
    payload: bytes


class Part(Struct, frozen=True):
    """A batch with its input and its output. Rows and groups are those after it."""

    watermark_ms: int
    records: list[InputRecord]
    output: list[OutputRecord]
    rows: list[StateRow]
    groups: dict[str, Any]


class Recorded(Struct, frozen=True):
    """The history of one version. `claim` is a record of the owner topic, and `started` the entry that a
    coordinator writes to the events topic when it starts.
    """

    state_version: int
    code_version: str
    settings: dict[str, int | str]
    logs: dict[str, list[Part]]
    started: dict[str, Any]
    claim: dict[str, Any]


def path_of(version: int) -> Path:
    return FOLDER / f"state_v{version}.json.xz"


def load(version: int) -> Recorded:
    return msgspec.json.decode(lzma.decompress(path_of(version).read_bytes()), type=Recorded)


def store(recorded: Recorded) -> None:
    text = msgspec.json.encode(recorded)
    path_of(recorded.state_version).write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def as_json(value: Any) -> Any:
    """Return a value of the state as JSON: structs as objects by the names of their fields, bytes as
    base64.
    """
    match value:
        case Struct():
            return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
        case Enum():
            return value.value
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_key(key): as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
    return value


def _key(key: Any) -> str:
    return msgspec.json.encode(as_json(key)).decode() if isinstance(key, Struct) else str(key)
