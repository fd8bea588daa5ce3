"""The refusal of a request to a group of the consumer protocol. Whoever raises it may have changed the group
before: the handler takes all changes back (`StepContext.undo`).
"""

from collections.abc import Callable

from state.errors import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.history import EntryType


class Refused(Exception):
    """The request is answered with an error: the row that decided it, the error, and a sentence that says
    what is wrong.

    `event` is the type of the history entry about it, None for no entry: a client that repeats its request
    adds to the history each time, so only what an operator has to see has an entry. `after` is called with
    the step's context when all changes are taken back.
    """

    def __init__(
        self,
        rule: RuleId,
        error: ErrorCode,
        message: str,
        event: EntryType | None = None,
        after: Callable[[StepContext], None] | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.error = error
        self.message = message
        self.event = event
        self.after = after
