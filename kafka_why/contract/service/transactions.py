"""The transactions with pending offsets, as a coordinator's process reports them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionsSummary:
    """What operators see: the open entries, the age of the oldest in ms, the markers not read yet, the
    entries decided so far by outcome, and the alarms.
    """

    pending: int = 0
    oldest_age_ms: int = 0
    lag: int = 0
    decided: tuple[tuple[str, int], ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def alarm(self) -> str | None:
        """The first of the alarms, and how many there are. None if there is none."""
        if len(self.alarms) < 2:
            return "".join(self.alarms) or None
        return f"{self.alarms[0]} ({len(self.alarms)} such transactions)"
