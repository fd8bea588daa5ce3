"""What a standby's replica does with the log: it acts on no time on which no coordinator has acted.

A standby does not know yet when an outage begins. Requests of an outage are handled at its end, so a replica
that has applied one at its own time would be wrong. An outage begins after the horizon, the greatest time on
which the owner's replica says that it has acted (`kafka_why.contract.early_answers`). So everything later is
held back.
"""

from collections import deque

from kafka_why.contract.codec import clock_of
from streaming.replica.state_machine import Record, StateMachine

# The owner's replica answers nothing if so many records wait, and a new seed is better than more of them.
HELD_MAX = 200_000


class HeldBack:
    """The records that wait, by partition."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._held: dict[int, deque[Record]] = {number: deque() for number in machine.partitions}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, record: Record) -> None:
        """Take the next record of a partition."""
        self._held[record.partition].append(record)

    def act_until(self, horizon_ms: int) -> None:
        """Act on what is not later than this time. Raises what `StateMachine.apply` raises."""
        for number, held in self._held.items():
            partition = self._machine.partitions[number]
            while held and partition.acted_ms(held[0], clock_of(held[0].key, held[0].value)) <= horizon_ms:
                self._machine.apply(held.popleft())

    def act(self) -> None:
        """Act on everything."""
        for held in self._held.values():
            while held:
                self._machine.apply(held.popleft())
