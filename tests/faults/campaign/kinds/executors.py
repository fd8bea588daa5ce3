"""Executors and workers of a Spark cluster are lost."""

from functools import partial

from tests.campaigns.fault import Fault
from tests.campaigns.processes import AnyStage, hold, kill


def _executor(stage: AnyStage) -> list[int]:
    """One of them."""
    return stage.executors()[:1]


EXECUTORS = (
    Fault("executor killed", 3.0, partial(kill, pids=_executor)),
    Fault("executor held still", 2.0, partial(hold, pids=_executor)),
)
