"""The order of one connection's requests about a group."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class GroupOrder:
    """Turns of requests about groups: a turn begins when the earlier turns about its groups have ended.

    A request takes its turn when it arrives, and ends it when its records are sent to the coordinator. So the
    records about a group are in the log in the order of the requests, and a request that waits for a broker
    holds up no other group.
    """

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, group_ids: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of a request about these groups, and end it with the block. The order is that of
        the calls.
        """
        groups, ended = dict.fromkeys(group_ids), asyncio.Event()
        earlier = {self._last[group_id] for group_id in groups if group_id in self._last}
        self._last.update(dict.fromkeys(groups, ended))
        try:
            for other in earlier:
                await other.wait()
            yield
        finally:
            ended.set()
            for group_id in groups:
                if self._last.get(group_id) is ended:
                    del self._last[group_id]
