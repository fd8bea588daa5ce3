"""The groups for ListGroups and ListConfigResources, with every change that any gateway has already answered.

A response may precede the view of the same change on the groups topic. So ListGroups first queries each
partition for changed groups. A replica answers at once, with their current state. The other groups are on the
topic, and the list waits until the reader has reached the topic's end. If no replica answers, these requests
are the first round of a barrier (`clients.coordinator_client`), and after its other rounds all views are on
the topic.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import structlog
from msgspec import UNSET

from clients.coordinator_client import (
    BARRIER_VERSION,
    Header,
    barrier_request,
    barrier_rounds,
    changed_request,
)
from gateway.coordinator.backend import Backend
from gateway.coordinator.groups import GroupsView, KnownGroup
from gateway.limits import Limits
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.kafka.responses import DEAD, DescribeGroupResponse, ListedGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode
from kafka_why.partitioner import hash_of

S = TypeVar("S")
R = TypeVar("R")


class Rounds(Generic[S]):
    """A runner of callers' work in rounds.

    A round starts when the previous round has ended, and includes all callers since then. `begin` runs once
    per round, and all work of the round gets its result. So each caller gets the result of a round that
    started after its call. Pieces of work run one at a time, and callers with equal keys share a result, so
    memory does not grow with the number of callers.
    """

    def __init__(self, begin: Callable[[], Awaitable[S]]) -> None:
        self._begin = begin
        self._waiting: dict[Hashable, _Piece[S]] = {}
        self._running: asyncio.Task[None] | None = None

    async def run(self, key: Hashable, work: Callable[[S], Awaitable[R]]) -> R:
        """Return the result of `work`, or of another caller's work with the same key.

        Work is skipped if all its callers have cancelled it.
        """
        piece = self._waiting.setdefault(key, _Piece(work))
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        piece.results.append(result)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await result

    async def _run(self) -> None:
        try:
            while self._waiting:
                pieces = deque(self._waiting.values())
                self._waiting = {}
                await self._round(pieces)
        finally:
            self._running = None

    async def _round(self, pieces: "deque[_Piece[S]]") -> None:
        try:
            begun = await self._begin()
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            for piece in pieces:
                piece.fail(error)
            return
        while pieces:  # no result may outlive its callers
            piece = pieces.popleft()
            if piece.is_wanted:
                await piece.run(begun)


class _Piece(Generic[S]):
    """A piece of work of a round, and the futures of its callers."""

    __slots__ = ("_work", "results")

    def __init__(self, work: Callable[[S], Awaitable[Any]]) -> None:
        self._work = work
        self.results: list[asyncio.Future[Any]] = []

    @property
    def is_wanted(self) -> bool:
        return not all(result.done() for result in self.results)

    async def run(self, begun: S) -> None:
        try:
            result = await self._work(begun)
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            self.fail(error)
            return
        # Each caller may write the result to a client, which takes some milliseconds if it is long.
        for future in self.results:
            if not future.done():
                future.set_result(result)
                await asyncio.sleep(0)

    def fail(self, error: Exception) -> None:
        for result in self.results:
            if not result.done():
                result.set_exception(error)


_CLIENT_ID = "gateway"


Listing = Sequence[KnownGroup]
"""The existing groups by id."""

log = structlog.get_logger()


class FreshGroups:
    """The existing groups, as current as the call. Concurrent calls share requests and the listing."""

    def __init__(self, backend: Backend, groups: GroupsView, limits: Limits, request_partitions: int) -> None:
        self._backend = backend
        self._groups = groups
        self._rounds = barrier_rounds(request_partitions)
        self._timeout_s = limits.groups_behind_max_s
        self._listing = Rounds(self._list)
        self._catching_up = Rounds(self._catch_up)

    async def shown(self, key: Hashable, show: Callable[[Listing], Awaitable[R]]) -> R | None:
        """Return the result of `show` for the existing groups, or None until the groups are read for the
        first time.

        Calls with equal keys may share a result, and one result is built at a time (`Rounds`). If the
        coordinator does not answer, or the reader does not reach the end of the topic in time, the groups are
        those read so far.
        """
        return await self._listing.run(key, show) if self._groups.is_read else None

    async def configured(self) -> Sequence[str] | None:
        """Return the ids that have settings, even without a group. Freshness and None are as for `shown`."""
        return await self._catching_up.run(None, _unchanged) if self._groups.is_read else None

    def type_of(self, group_id: str) -> str | None:
        """Return the type of an existing group, or None if no such group has been read."""
        return self._groups.type_of(group_id)

    async def _list(self) -> Listing:
        """List the groups at the topic's end, and those that the replica reports as changed. If no replica
        answers for a partition, run the barrier's other rounds instead.
        """
        first, *others = self._rounds
        answers = await self._ask(first, changed_request)
        changed = [group for answer in answers for group in answer.changed or ()]
        is_by_replica = not any(answer.changed is UNSET for answer in answers)
        if is_by_replica or (all(map(_is_answered, answers)) and await self._are_answered(others)):
            await self._reach_end()
        return await asyncio.to_thread(self._merge, changed if is_by_replica else ())

    def _merge(self, changed: Iterable[ListedGroup]) -> Listing:
        """Return the groups of the view and those that have changed since, by id. Runs in a worker thread."""
        known = {group.group_id: group for group in self._groups.groups()}
        known |= {group.group_id: _known_group(group) for group in changed}
        existing = [group for group in known.values() if group.state != DEAD]
        existing.sort(key=attrgetter("group_id"))
        return existing

    async def _catch_up(self) -> Sequence[str]:
        if await self._are_answered(self._rounds):
            await self._reach_end()
        return await asyncio.to_thread(self._groups.configured)

    async def _are_answered(self, rounds: Sequence[Sequence[str]]) -> bool:
        """Send the barrier's requests. Return False if a response is missing, which the backend has
        logged.
        """
        for group_ids in rounds:
            if not all(map(_is_answered, await self._ask(group_ids, barrier_request))):
                return False
        return True

    async def _reach_end(self) -> None:
        if not await self._groups.reach_end(self._timeout_s):
            log.warning("the groups topic is not read to its end, ListGroups may miss the latest changes")

    async def _ask(
        self, group_ids: Sequence[str], build: Callable[[Header], DescribeGroup]
    ) -> list[DescribeGroupResponse]:
        headers = (self._backend.header(it, BARRIER_VERSION, _CLIENT_ID, "", ANONYMOUS) for it in group_ids)
        return await asyncio.gather(*(self._backend.ask(build(header)) for header in headers))


def _known_group(group: ListedGroup) -> KnownGroup:
    return KnownGroup(
        group.group_id,
        group.state,
        group.protocol_type,
        group.group_type,
        id_hash=hash_of(group.group_id),
    )


async def _unchanged(group_ids: Sequence[str]) -> Sequence[str]:
    return group_ids


def _is_answered(answer: DescribeGroupResponse) -> bool:
    return bool(answer.request) or answer.error_code is not ErrorCode.COORDINATOR_NOT_AVAILABLE
