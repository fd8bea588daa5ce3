"""Naming the damaged file of a checkpoint. The fault campaign damages real checkpoints."""

import struct
import zlib
from pathlib import Path

import pytest

from checkpoints.state_stores import describe_damage
from kafka_why.local_files import LocalFiles

PART_BYTES = 512


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return the folder of one state store, with a snapshot of version 2 and changelogs up to version 5."""
    store = tmp_path / "spark" / "state" / "0" / "0"
    store.mkdir(parents=True)
    write(store / "2.zip", bytes(3 * PART_BYTES))
    for version in range(2, 6):
        write(store / f"{version}.changelog", f"changes of {version}".encode() * 100)
    return store


def write(path: Path, content: bytes) -> None:
    """Write a file as Hadoop does, with its checksum file."""
    path.write_bytes(content)
    parts = [content[i : i + PART_BYTES] for i in range(0, len(content), PART_BYTES)]
    checksums = b"".join(struct.pack(">I", zlib.crc32(part)) for part in parts)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">I", PART_BYTES) + checksums)


def test_a_sound_checkpoint_has_no_damage(tmp_path: Path, store: Path) -> None:
    write(store / ".6.changelog.123.tmp", b"left by a crash")
    (store / ".6.changelog.123.tmp").write_bytes(b"left by a cr")
    assert describe_damage(LocalFiles(tmp_path)) == []


@pytest.mark.parametrize("at", [0, PART_BYTES - 1, PART_BYTES, -1])
def test_a_changed_byte_is_found(tmp_path: Path, store: Path, at: int) -> None:
    path = store / "4.changelog"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert describe_damage(LocalFiles(tmp_path)) == [f"{path} does not match its checksum"]


@pytest.mark.parametrize("length", [0, 1, PART_BYTES, PART_BYTES + 1])
def test_a_file_cut_short_is_found(tmp_path: Path, store: Path, length: int) -> None:
    path = store / "2.zip"
    path.write_bytes(bytes(length))
    assert describe_damage(LocalFiles(tmp_path)) == [f"{path} does not match its checksum"]


def test_a_missing_changelog_is_found(tmp_path: Path, store: Path) -> None:
    """Changelogs before the snapshot are not needed, and purged in time."""
    (store / "2.changelog").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == []
    (store / "3.changelog").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == [f"{store / '3.changelog'} is missing"]


def test_file_without_checksums_is_not_reported(tmp_path: Path, store: Path) -> None:
    (store / ".4.changelog.crc").write_bytes(b"")
    (store / ".5.changelog.crc").unlink()
    assert describe_damage(LocalFiles(tmp_path)) == []


def test_files_that_spark_no_longer_reads_are_not_reported(tmp_path: Path, store: Path) -> None:
    """The query continues without them. A service ends because of each file that is named."""
    commits = tmp_path / "spark" / "commits"
    commits.mkdir()
    for batch in range(3, 5):
        write(commits / str(batch), b"done")
    write(store / "4.zip", bytes(PART_BYTES))
    for path in (commits / "3", store / "2.zip", store / "3.changelog"):
        path.write_bytes(b"")
    assert describe_damage(LocalFiles(tmp_path)) == []
    for path in (commits / "4", store / "4.zip"):
        path.write_bytes(b"")
    assert describe_damage(LocalFiles(tmp_path)) == [
        f"{path} does not match its checksum" for path in (commits / "4", store / "4.zip")
    ]
