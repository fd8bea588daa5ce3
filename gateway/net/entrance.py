"""The entrance of a gateway: its decision about each new connection, carried out."""

import asyncio
from asyncio import Future
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from gateway.limits import Limits
from gateway.log_text import RateLimitedWarning
from gateway.metrics.counts import DRAINING
from gateway.net.lifecycle import ClientGone
from gateway.net.limits.connections import ConnectionAdmission
from gateway.quotas import Quotas


class EnteringClient(Protocol):
    """A client that has just connected. `ended` is done when its connection ends."""

    @property
    def peer(self) -> str:
        """Its IP address."""

    @property
    def ended(self) -> "Future[Exception]": ...
    def pause(self, *, paused: bool) -> None: ...
    def end(self, why: Exception) -> None: ...
    def abort(self) -> None: ...


class AdmissionCounts(Protocol):
    """Counts of new connections. `refused` is by reason, one of `gateway.metrics.counts.REASONS`."""

    accepted: int
    refused: Counter[str]


class Entrance:
    """The entrance of all listeners of a gateway. While `is_draining` every connection is refused."""

    def __init__(self, limits: Limits, quotas: Quotas, counts: AdmissionCounts) -> None:
        self._admission = ConnectionAdmission(limits, quotas)
        self._counts = counts
        self._warning = RateLimitedWarning("a connection was refused", "refused")
        self._open = 0
        self.is_draining = False

    def receive(self, client: EnteringClient, begin: Callable[[], None]) -> None:
        """Call `begin` to serve the client, or close its connection. Both may be some time later, and nothing
        is read from the client meanwhile.
        """
        decision = self._admission.admit(client.peer)
        self._open += 1
        client.ended.add_done_callback(lambda _, peer=client.peer: self._release(peer))  # type: ignore[misc]
        refused = DRAINING if self.is_draining else decision.refused
        if refused is not None:
            self._counts.refused[refused] += 1
            self._warning.add(connections=self._open, limit=refused)
            act = partial(self._refuse, client)
        else:
            self._counts.accepted += 1
            act = partial(self._admit, client, begin)
        if decision.wait_s:
            client.pause(paused=True)
            asyncio.get_running_loop().call_later(decision.wait_s, act)
        else:
            act()

    def _release(self, peer: str) -> None:
        self._open -= 1
        self._admission.release(peer)

    def _admit(self, client: EnteringClient, begin: Callable[[], None]) -> None:
        client.pause(paused=False)
        begin()

    def _refuse(self, client: EnteringClient) -> None:
        client.end(ClientGone("refused"))
        client.abort()
