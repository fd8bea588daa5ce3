"""Records what code does to the disk, in order, so that a test can check what a power loss may leave."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def record_disk_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which steps are added: "sync NAME" of a file or folder, "make NAME" of a folder, and
    "name NAME" of a file that is renamed or linked.
    """
    steps: list[str] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def recorded(step: str, call: Callable[..., None], path_index: int) -> Callable[..., None]:
        def record(*arguments: object) -> None:
            call(*arguments)
            steps.append(f"{step} {Path(str(arguments[path_index])).name}")

        return record

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "mkdir", recorded("make", os.mkdir, 0))
    for name in ("replace", "rename", "link"):
        monkeypatch.setattr(os, name, recorded("name", getattr(os, name), 1))
    return steps
