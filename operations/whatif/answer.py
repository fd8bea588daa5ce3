"""The answer to a what-if: what happened, whether the closed loop reproduces it, and what else would have."""

from collections.abc import Sequence
from dataclasses import dataclass

from operations.whatif.changes import UNCHANGED, Changes
from operations.whatif.clients import derive
from operations.whatif.facts import Fleet
from operations.whatif.figures import Judged, judge
from operations.whatif.run import Log
from operations.whatif.simulation import simulate
from operations.whatif.validation import Validation, validate

RECORDED = "as it was"


@dataclass(frozen=True)
class Answer:
    """`tried` is empty if the validation has objections, because the comparison would be worth nothing."""

    log: Log
    fleet: Fleet
    recorded: Judged
    validation: Validation
    tried: Sequence[Judged]


def answer(log: Log, experiments: Sequence[Changes]) -> Answer:
    """Find the clients in the log, run them as they were, and then under each experiment's settings.

    Raises WhatIfError if the group cannot be simulated.
    """
    for changes in experiments:
        changes.configs(log.configs)
    fleet, run = derive(log)
    recorded = judge(RECORDED, fleet, run)
    again = judge(UNCHANGED.name, fleet, simulate(fleet, log, UNCHANGED))
    validation = validate(recorded, again)
    tried = (
        []
        if validation.objections
        else [judge(changes.name, fleet, simulate(fleet, log, changes)) for changes in experiments]
    )
    return Answer(log, fleet, recorded, validation, tried)
