"""The seed of a replica: the state after a committed batch, and what decides the records that follow.

The service writes it to a file, because only Spark reads its own state. The replica has no Spark.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec import Struct

from checkpoints import codec
from checkpoints.metadata import Epoch, Identity, KnownOutage


class ShardRow(Struct, frozen=True, array_like=True):
    """A row of the state: `key` names it, the rest is as `checkpoints.codec.read_row` reads it."""

    key: str
    version: int
    payload: bytes


class Seed(Struct, frozen=True, kw_only=True):
    """The state after `batch`, whose `ends` are the offsets of the first records that it has not read.

    `epochs` and `outages` are all that are known, those of later batches too. `batch` -1: there is no
    committed batch, so the replica begins at the beginning of the topic.
    """

    identity: Identity
    batch: int
    ends: dict[int, int]
    epochs: list[Epoch]
    outages: list[KnownOutage]
    rows: list[ShardRow]

    def groups(self) -> Iterator[tuple[str, codec.Entry]]:
        """The groups at rest. Raises StateError."""
        for row in self.rows:
            yield from codec.read_row(row.key, row.version, row.payload).items()


def write_seed(folder: Path, seed: Seed) -> Path:
    """Write a seed to a new file that only its owner may read, because the identity is secret."""
    path = folder / f"replica-seed-{uuid4()}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(msgspec.msgpack.encode(seed))
    return path


def take_seed(path: Path) -> Seed:
    """Read a seed and remove its file."""
    encoded = path.read_bytes()
    path.unlink()
    return msgspec.msgpack.decode(encoded, type=Seed)
