"""Files that are read again when they change: what is used, and what the log says if one cannot be."""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.watched_files import WatchedFiles
from tests.harness.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def watched(path: Path) -> WatchedFiles[int]:
    """Return a file with a number. Anything else raises ValueError."""
    return WatchedFiles([path], lambda: int(path.read_text()))


def test_changed_file_is_reloaded_and_a_broken_one_keeps_the_old_value(path: Path, tmp_path: Path) -> None:
    files = watched(path)
    assert (files.refresh(), files.value) == (False, 1)
    path.write_text("22")
    assert (files.refresh(), files.value) == (True, 22)
    times = path.stat()
    path.write_text("23")  # in its place, with the same size and times
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (files.refresh(), files.value) == (True, 23)
    with capture_logs() as logs:
        path.write_text("none")
        assert not files.refresh()
        assert not files.refresh()
        path.unlink()
        assert not files.refresh()
    assert files.value == 23
    assert [entry["log_level"] for entry in logs] == ["error", "error"], "each file is told once"
    assert [entry["error"] for entry in logs][1] == "FileNotFoundError"
    other = tmp_path / "other"
    other.write_text("3")
    other.replace(path)  # as Kubernetes replaces a mounted file
    assert (files.refresh(), files.value) == (True, 3)


def test_unreadable_file_is_retried_although_it_has_not_changed(path: Path) -> None:
    """As on a file system that is away for a while."""
    is_away = False

    def read() -> str:
        if is_away:
            raise OSError
        return path.read_text()

    files = WatchedFiles([path], read)
    is_away = True
    path.write_text("22")
    assert (files.refresh(), files.value) == (False, "1")
    with pytest.raises(OSError, match=r"^$"):
        files.read_again()
    is_away = False
    assert (files.refresh(), files.value) == (True, "22")


def test_following_a_file_continues_until_cancelled(path: Path) -> None:
    used = list[int]()

    async def follow() -> None:
        following = asyncio.create_task(watched(path).follow(used.append, interval_s=0.001))
        for text in ("22", "none", "3"):
            path.write_text(text)
            if text != "none":
                await until(partial(used.__contains__, int(text)))
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following

    asyncio.run(follow())
    assert used == [22, 3]
