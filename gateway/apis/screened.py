"""Requests of which only a part continues to the broker, or whose response is changed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.wire import codec, offload
from gateway.wire.codec import Fields

Change = Callable[[Any], Awaitable[None]]
"""Changes a broker's response, which may have all that there is of something: in slices, if that is long."""


@dataclass(frozen=True, slots=True)
class Screened:
    """A request after screening.

    `remaining` is the message for the broker, or None if nothing is left of it. `refused` is a response with
    the errors of the refused entries. `change` changes the broker's response. `answer` returns a response
    built from the broker's, in place of `refused` and `change`. Without these three a response passes
    undecoded. `saw` is called with the beginning of the broker's response, and `sees` with each part in turn.
    """

    remaining: bytes | None
    refused: Fields
    change: Change | None = None
    saw: Callable[[bytes], None] | None = None
    sees: Callable[[bytes], object] | None = None
    answer: Callable[[Any], Awaitable[Fields]] | None = None

    @property
    def changes_response(self) -> bool:
        """True if the broker's response has to be decoded for `complete`."""
        return bool(self.refused) or self.change is not None or self.answer is not None

    def see(self, response: bytes) -> None:
        """Pass a whole response to `saw` and `sees`."""
        for sees in (self.saw, self.sees):
            if sees is not None:
                sees(response)

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


def both(first: Screened, second: Screened) -> Screened:
    """Return the combination of two screenings. The second screened the remaining part of the first."""
    lists = {*first.refused, *second.refused}
    changes = [one.change for one in (first, second) if one.change is not None]
    return Screened(
        second.remaining,
        {name: [*_entries(first, name), *_entries(second, name)] for name in lists},
        in_turn(changes) if changes else None,
        first.saw or second.saw,
        first.sees or second.sees,
        first.answer or second.answer,
    )


def _entries(screened: Screened, name: str) -> Sequence[Fields]:
    entries: Sequence[Fields] = screened.refused.get(name, ())
    return entries


def in_turn(changes: Sequence[Change]) -> Change:
    """Return a change that makes all of these changes, one after the other."""

    async def change(response: Any) -> None:
        for one in changes:
            await one(response)

    return change
