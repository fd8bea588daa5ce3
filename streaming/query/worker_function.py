"""The function that Spark sends to its Python workers, and what it does when it arrives there."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A function for applyInPandasWithState that a Python worker gets only after `checks`, which may raise.

    Spark sends the function to a worker for each pass of each task, also for a task without a single row,
    whose state is committed all the same. So the checks are made where the worker unpickles the function.
    """

    function: Callable[..., Iterator[Any]]
    checks: tuple[Callable[[], None], ...] = ()

    def __call__(self, *arguments: Any) -> Iterator[Any]:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.function, self.checks)


def _arrive(
    function: Callable[..., Iterator[Any]], checks: tuple[Callable[[], None], ...]
) -> Callable[..., Iterator[Any]]:
    _freeze_imports()
    for check in checks:
        check()
    return function


@cache
def _freeze_imports() -> None:
    """Exempt the objects of all imported modules from garbage collections, once in each Python worker.

    PySpark's worker collects garbage after each task. It would walk them each time, which takes 0.1 s.
    """
    gc.collect()
    gc.freeze()
