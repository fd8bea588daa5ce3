"""How long a member's request is held by the gateway: docs/decisions/0009. No IO and no clock of its own."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

# The batches of an overloaded coordinator grow: at twice the rate that it holds, each batch takes twice the
# time of the one before. No answer comes between the last of one batch and the first of the next.
_MARGIN = 3.0
# What a slow answer took fades, to half after this time.
_HALF_LIFE_S = 5.0


class Held(Protocol):
    """A request that is held. `asked_at_s` is in seconds of the clock that `HeldRequests` gets."""

    asked_at_s: float

    def is_over(self) -> bool:
        """Whether it has an answer, or nothing waits for one."""


H = TypeVar("H", bound=Held)


class AdaptiveTimeout:
    """How long a member's request is held: `least_ms`, or three times what the slowest of the recent answers
    took, but at most `most_ms`.

    A member sends nothing while it is held, so an absent coordinator must not hold it for long. A slow
    coordinator must be waited for, because otherwise no member would learn of a rebalance.
    """

    def __init__(self, least_ms: int, most_ms: int) -> None:
        self._least_s = least_ms / 1000
        self._most_s = most_ms / 1000
        self._slowest_s = 0.0
        self._learned_at_s = 0.0

    def learn(self, took_s: float, now_s: float) -> None:
        """Record how long an answer took, even if it came too late for the member."""
        faded_s = self._slowest_s * 0.5 ** ((now_s - self._learned_at_s) / _HALF_LIFE_S)
        self._slowest_s, self._learned_at_s = max(took_s, faded_s), now_s

    @property
    def bound_s(self) -> float:
        return min(max(self._least_s, _MARGIN * self._slowest_s), self._most_s)


class HeldRequests(Generic[H]):
    """The requests that are held, in the order in which they were sent. Times are in seconds."""

    def __init__(self, timeout: AdaptiveTimeout) -> None:
        self.timeout = timeout
        self._held: deque[H] = deque()

    def hold(self, request: H) -> None:
        """Hold a request that was sent after all others."""
        self._held.append(request)

    def give_up(self, now_s: float) -> Iterator[H]:
        """Take out the requests that are not to be held any longer."""
        bound_s = self.timeout.bound_s
        while (first := self.first()) is not None and first.asked_at_s + bound_s <= now_s:
            yield self._held.popleft()

    def first(self) -> H | None:
        """The request that is held for the longest time. Those before it, which are over, are dropped."""
        held = self._held
        while held and held[0].is_over():
            held.popleft()
        return held[0] if held else None

    def check_at_s(self) -> float | None:
        """When a request may have to be given up next, None if none is held."""
        first = self.first()
        return None if first is None else first.asked_at_s + self.timeout.bound_s
