"""Which request a Python worker handles, in a file: a worker that is killed leaves no error that names it.

The notes cost a write for each request, so a query takes them only after its workers have died.
"""

from collections.abc import Callable
from pathlib import Path

WORKER_DIED = "Python worker exited unexpectedly"
"""In the error of a query whose worker ended without a Python error."""

Note = Callable[[str], None]


def nothing(text: str) -> None:
    """Take no note."""


def noting(prefix: str | None, task: int) -> Note:
    """What writes a task's notes. Workers side by side have files of their own. If `prefix` is None, nothing
    is noted.
    """
    if prefix is None:
        return nothing
    path = Path(f"{prefix}-{task}")

    def note(text: str) -> None:
        path.write_text(text)

    return note


def left_behind(prefix: str | None) -> list[str]:
    """Return the notes of tasks that did not come to their end, and remove all notes. There are none where
    the workers run on other machines.
    """
    if prefix is None:
        return []
    texts = []
    for path in sorted(Path(prefix).parent.glob(f"{Path(prefix).name}-*")):
        texts.append(path.read_text())
        path.unlink()
    return [text for text in texts if text]
