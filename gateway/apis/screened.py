"""Requests of which only a part passes to the broker, or whose response is changed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.wire import codec, offload
from gateway.wire.codec import Fields

Change = Callable[[Any], Awaitable[None]]
"""Changes a broker's response, in slices if it is long."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A request after screening.

    `remaining` is the message for the broker, or None if it is empty. `refused` is a response with the errors
    of the refused entries. `change` changes the broker's response. `answer` returns a response built from the
    broker's, instead of `refused` and `change`. Without these three a response passes undecoded. `on_start`
    is called with the beginning of the broker's response, and `on_part` with each part.
    """

    remaining: bytes | None
    refused: Fields
    change: Change | None = None
    on_start: Callable[[bytes], None] | None = None
    on_part: Callable[[bytes], object] | None = None
    answer: Callable[[Any], Awaitable[Fields]] | None = None

    @property
    def changes_response(self) -> bool:
        """True if the broker's response has to be decoded for `complete`."""
        return bool(self.refused) or self.change is not None or self.answer is not None

    def receive(self, response: bytes) -> None:
        """Pass a whole response to `on_start` and `on_part`."""
        for receive in (self.on_start, self.on_part):
            if receive is not None:
                receive(response)

    async def complete(self, response: Any) -> tuple[Any, bool]:
        """Change the broker's response, and add the errors of the refused entries. Return the response, and
        True if these errors are many.
        """
        if self.answer is not None:
            return await self.answer(response), False
        if self.change is not None:
            await self.change(response)
        is_long = offload.is_long(self.refused)
        for name, entries in self.refused.items():
            if is_long:
                await offload.run(codec.extend, response, name, entries)
            else:
                codec.extend(response, name, entries)
        return response, is_long


def combine(first: Screened, second: Screened) -> Screened:
    """Combine two screenings, the second of which screened the remaining part of the first."""
    lists = {*first.refused, *second.refused}
    changes = [one.change for one in (first, second) if one.change is not None]
    return Screened(
        second.remaining,
        {name: [*_entries(first, name), *_entries(second, name)] for name in lists},
        chain(changes) if changes else None,
        first.on_start or second.on_start,
        first.on_part or second.on_part,
        first.answer or second.answer,
    )


def _entries(screened: Screened, name: str) -> Sequence[Fields]:
    entries: Sequence[Fields] = screened.refused.get(name, ())
    return entries


def chain(changes: Sequence[Change]) -> Change:
    """Return a change that applies these changes one after the other."""

    async def change(response: Any) -> None:
        for one in changes:
            await one(response)

    return change
