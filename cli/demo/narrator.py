"""The printed lines of a story."""

import json
import time
from collections.abc import Callable
from typing import Any

from kafka_why.cli.output import show

PATIENCE_S = 300.0
"""The time limit of each wait. It is long, because a busy machine is slow, not wrong."""


class NotSeen(RuntimeError):
    """An expected event did not happen in time."""


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition of other processes. Raises NotSeen after PATIENCE_S."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise NotSeen(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(0.2)


class Narrator:
    """A printer of the numbered steps of a story, with the seconds since its start."""

    def __init__(self) -> None:
        self._started_s = time.time()
        self._steps = 0

    def step(self, text: str) -> None:
        self._steps += 1
        show()
        show(f"{self._steps}. {text}")

    def say(self, text: str, at_s: float | None = None) -> None:
        """Print a line for now, or for `at_s` since the epoch."""
        show(f"{(time.time() if at_s is None else at_s) - self._started_s:8.1f} s  {text}")


def json_line(line: str) -> dict[str, Any]:
    """Return the JSON object in a child's line of output, or {}."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
