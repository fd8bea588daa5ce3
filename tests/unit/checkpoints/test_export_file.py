"""The file of an exported state: complete and unchanged, or refused."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints.metadata import Epoch, Identity, KnownOutage, Moved
from checkpoints.sealed_file import ExportedGroup, ExportFile, ExportHeader, write_export
from checkpoints.spark_logs import PlannedBatch
from kafka_why.errors import UserFacingError
from state.protocol import Outage
from tests.harness.disk_steps import record_disk_steps

HEADER = ExportHeader(
    exported_at_ms=1_700_000_000_000,
    code_version="0.1.0",
    identity=Identity("c", "eu-requests", "t", 2, "a secret", 64, Moved("new", "old", 1)),
    epochs=[Epoch(0, {"group.max.size": 5}, ["eu-requests-0-7"], "0.0.9")],
    outages=[KnownOutage(0, Outage(1, 2))],
    committed=PlannedBatch({0: 17, 1: 4}, 1_000, 2_000),
    next_watermark_ms=1_100,
    planned=PlannedBatch({0: 19, 1: 4}, 1_100, 2_100),
    unread={0: 2, 1: 0},
    batch=7,
)
GROUPS = [ExportedGroup("g", 3, b"\x00\xff\n"), ExportedGroup('a "name"\n', 1, b"")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "state.export"
    assert write_export(path, HEADER, GROUPS) == 2
    return path


def test_export_round_trips_and_is_private_to_its_owner(path: Path, tmp_path: Path) -> None:
    """It has the secret namespace. An export without groups is complete."""
    export = ExportFile(path)
    assert (export.header, export.line_count, list(export.groups())) == (HEADER, 2, GROUPS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write_export(tmp_path / "empty", HEADER, []) == 0
    assert list(ExportFile(tmp_path / "empty").groups()) == []


def test_export_file_and_its_folder_entry_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = record_disk_steps(monkeypatch)
    write_export(tmp_path / "state.export", HEADER, GROUPS)
    assert steps == ["sync state.export.new", "name state.export", f"sync {tmp_path.name}"]


def test_export_file_cut_at_any_byte_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for end in [*range(0, len(whole), 5), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(UserFacingError, match=r"state\.export (is cut|is not an export|does not match)"):
            ExportFile(path)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_export_file_with_any_byte_changed_is_refused(path: Path, bit: int) -> None:
    """The highest bit makes text that is no UTF-8."""
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(UserFacingError, match=r"state\.export"):
            ExportFile(path)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda lines: [lines[0], *lines[2:]], "does not match its checksum"),
        # The number comes before anything else of it is read.
        (
            lambda _: [b'{"version": 2, "of another": "shape"}\n'],
            "is an export of format 2; this code reads format 1",
        ),
        (lambda _: [b"\x89PNG\r\n"], "is not an export"),
    ],
    ids=["a group is lost", "another format", "another kind"],
)
def test_file_that_is_not_a_complete_export_is_refused(
    path: Path, change: Callable[[list[bytes]], list[bytes]], refusal: str
) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UserFacingError, match=refusal):
        ExportFile(path)


def test_an_export_never_replaces_a_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UserFacingError, match=r"state\.export exists"):
        write_export(path, HEADER, [])
    assert path.read_bytes() == before
