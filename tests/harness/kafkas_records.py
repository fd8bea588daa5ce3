"""Kafka's own writing of records of `__consumer_offsets`, by its group coordinator's classes in a JVM."""

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from embedded.java import find_java
from records.wire.schema_notation import Schema, attribute_of, in_versions, is_nullable
from tests.harness.java_tools import java_options

WRITER = Path(__file__).with_name("kafkas_records.java")
_TIMEOUT_S = 120
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "g", "orders", "a b", "größe", "x" * 300)


class Message(NamedTuple):
    """A key or value to write: its schema, its version, what precedes it, and Kafka's JSON of it."""

    schema: Schema
    version: int
    prefix: int
    content: dict[str, Any]

    @property
    def line(self) -> str:
        return f"{self.prefix} {self.version} {self.schema['name']} {json.dumps(self.content)}"


def written(messages: Sequence[Message]) -> list[bytes]:
    """Return the bytes that Kafka writes for each message."""
    command = [str(find_java()), *java_options(), "-Dlog4j2.level=OFF", str(WRITER)]
    lines = "".join(f"{message.line}\n" for message in messages)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=_TIMEOUT_S, check=True)
    return [bytes.fromhex(line) for line in done.stdout.decode().split()]


def random_content(schema: Schema, version: int, random: Random) -> dict[str, Any]:
    """Return random values for the fields of a version, as Kafka's JSON has them."""
    return {
        _json_name(field): _value(field, version, random)
        for field in schema["fields"]
        if in_versions(field["versions"], version)
    }


def _json_name(field: Schema) -> str:
    name: str = field["name"]
    return name[0].lower() + name[1:]


def _value(field: Schema, version: int, random: Random) -> Any:
    kind: str = field["type"]
    if is_nullable(field, version) and random.random() < 0.3:
        return None
    if kind.startswith("[]"):
        # Kafka does not write an empty list in a tag whose default is null.
        least = 1 if "tag" in field else 0
        return [_one(kind[2:], field, version, random) for _ in range(random.randrange(least, 4))]
    return _one(kind, field, version, random)


def _one(kind: str, field: Schema, version: int, random: Random) -> Any:
    if "fields" in field:
        return random_content(field, version, random)
    match kind:
        case "string":
            return random.choice(_TEXTS)
        case "bytes":
            return base64.b64encode(random.randbytes(random.randrange(200))).decode()
        case "uuid":
            return base64.urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")
        case "uint16":
            return random.randrange(2**16)
        case "bool":
            return random.random() < 0.5
    half = 2 ** (_BITS[kind] - 1)
    return random.choice((-1, 0, 1, half - 1, -half, random.randrange(-half, half)))


def as_content(read: Any, schema: Schema, version: int) -> dict[str, Any]:
    """Return the fields of a message that was read, as Kafka's JSON has them."""
    return {
        _json_name(field): _as_json(getattr(read, attribute_of(field)), field, version)
        for field in schema["fields"]
        if in_versions(field["versions"], version)
    }


def _as_json(value: Any, field: Schema, version: int) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(one, field, version) for one in value]
    if value is not None and "fields" in field:
        return as_content(value, field, version)
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
