"""The campaign of exactly-once applications, of one seed."""

from collections.abc import Sequence
from functools import partial

from tests.campaigns.playing import play, schedule
from tests.transactions.applications import APPLICATIONS
from tests.transactions.kinds import ALL, KINDS, REFERENCE
from tests.transactions.stage import TransactionResult, TransactionStage


def campaign(
    seed: int,
    faults: int,
    clients: Sequence[str],
    *,
    kinds: Sequence[str] = (),
    step: str = "steady",
    reference: bool = False,
    brokers: int = 1,
    until_s: float = float("inf"),
) -> TransactionResult:
    """Play one seed. `until_s` is as in `play`."""
    system = "Kafka" if reference else "this project" if step == "steady" else f"with the bug {step!r}"
    build = partial(
        TransactionStage,
        seed=seed,
        applications=[APPLICATIONS[name] for name in clients],
        step=step,
        is_reference=reference,
        nodes=brokers,
    )
    names = kinds or [fault.name for fault in (REFERENCE if reference else ALL)]
    result = TransactionResult(seed=seed, system=system)
    return play("transactions", result, build, KINDS, schedule(seed, faults, names, KINDS), until_s)
