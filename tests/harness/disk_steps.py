"""What code does to the disk, in order, so that a test can say what a power loss may leave."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def record_disk_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows: "sync NAME" of files and folders, "make NAME" of folders, and "name NAME" of
    files that are renamed or linked.
    """
    steps: list[str] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def recorded(step: str, call: Callable[..., None], named: int) -> Callable[..., None]:
        def record(*arguments: object) -> None:
            call(*arguments)
            steps.append(f"{step} {Path(str(arguments[named])).name}")

        return record

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "mkdir", recorded("make", os.mkdir, 0))
    for name in ("replace", "rename", "link"):
        monkeypatch.setattr(os, name, recorded("name", getattr(os, name), 1))
    return steps
