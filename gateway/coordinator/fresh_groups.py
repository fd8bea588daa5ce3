"""The groups for ListGroups and ListConfigResources, with every change that any gateway has already answered.

The coordinator may answer a change before it writes the group's view to the groups topic. So ListGroups first
sends a query for changed groups to each partition of the requests topic. If a replica (a process that answers
before the Spark query does) handles the partition, it answers at once with the current state of these groups.
The other groups are on the groups topic, and the list waits until the reader has reached the topic's end.

If a partition has no replica, the queries are the first round of a barrier (`clients.barrier`): several
rounds of requests, after whose answers all earlier changes are on the groups topic.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

import structlog
from msgspec import UNSET, UnsetType

from clients.barrier import BARRIER_VERSION, barrier_request, barrier_rounds
from gateway.coordinator.failures import Backend
from gateway.coordinator.groups import GroupsView, KnownGroup
from gateway.limits import Limits
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.responses import DescribeGroupResponse, ListedGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode
from kafka_why.partitioner import hash_of

S = TypeVar("S")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Rounds(Generic[S]):
    """A runner of callers' work in rounds.

    A round starts when the previous round has ended, and includes all callers since then. `begin` runs once
    per round, and all work of the round gets its result. So each caller gets the result of a round that
    started after its call. Pieces of work run one at a time, and callers with equal keys share a result, so
    memory does not grow with the number of callers.
    """

    begin: Callable[[], Awaitable[S]]
    _waiting: "dict[Hashable, _SharedWork[S]]" = field(default_factory=dict)
    _running: asyncio.Task[None] | None = None

    async def run(self, key: Hashable, work: Callable[[S], Awaitable[R]]) -> R:
        """Return the result of `work`, or of another caller's work with the same key.

        Work is skipped if all its callers have cancelled it.
        """
        shared_work = self._waiting.setdefault(key, _SharedWork(work))
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        shared_work.results.append(result)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await result

    async def _run(self) -> None:
        """Run rounds until no work waits."""
        try:
            while self._waiting:
                round_work = deque(self._waiting.values())
                self._waiting = {}
                await self._run_round(round_work)
        finally:
            self._running = None

    async def _run_round(self, round_work: "deque[_SharedWork[S]]") -> None:
        """Call `begin`, and run each piece of work with its result."""
        try:
            begin_result = await self.begin()
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            for shared_work in round_work:
                shared_work.fail(error)
            return
        while round_work:
            # Remove each piece of work, so that its result does not stay in memory until the round ends.
            shared_work = round_work.popleft()
            if shared_work.is_wanted:
                await shared_work.run(begin_result)


@dataclass(slots=True)
class _SharedWork(Generic[S]):
    """A piece of work of a round, and the futures of its callers."""

    work: Callable[[S], Awaitable[Any]]
    results: list[asyncio.Future[Any]] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """True if a caller waits: its future is neither cancelled nor otherwise done."""
        return not all(result.done() for result in self.results)

    async def run(self, begin_result: S) -> None:
        """Run the work, and give its result or error to the callers."""
        try:
            result = await self.work(begin_result)
        except Exception as error:  # noqa: BLE001 - the callers must get any error
            self.fail(error)
            return
        # Each caller may write the result to a client, which takes some milliseconds if it is long.
        for future in self.results:
            if not future.done():
                future.set_result(result)
                await asyncio.sleep(0)

    def fail(self, error: Exception) -> None:
        """Raise this error at the callers that still wait."""
        for result in self.results:
            if not result.done():
                result.set_exception(error)


_CLIENT_ID = "gateway"


Listing = Sequence[KnownGroup]
"""The existing groups by id."""

log = structlog.get_logger()


class FreshGroups:
    """The existing groups, with every change that was answered before the call. Concurrent calls share
    requests and the listing.
    """

    def __init__(self, backend: Backend, groups: GroupsView, limits: Limits, request_partitions: int) -> None:
        self._backend = backend
        self._groups = groups
        self._barrier_rounds = barrier_rounds(request_partitions)
        self._timeout_s = limits.groups_behind_max_s
        self._listing = Rounds(self._list)
        self._catching_up = Rounds(self._catch_up)

    async def build_list(self, key: Hashable, build: Callable[[Listing], Awaitable[R]]) -> R | None:
        """Return the result of `build` for the existing groups, or None until the groups are read for the
        first time.

        Calls with equal keys may share a result, and one result is built at a time (`Rounds`). If the
        coordinator does not answer, or the reader does not reach the end of the topic in time, the groups are
        those read so far.
        """
        return await self._listing.run(key, build) if self._groups.has_caught_up else None

    async def configured_group_ids(self) -> Sequence[str] | None:
        """Return the ids of groups that have settings, even of groups that do not exist.

        The ids are as current as the groups of `build_list`, and None until the groups are read for the first
        time.
        """
        return await self._catching_up.run(key=None, work=_unchanged) if self._groups.has_caught_up else None

    def type_of(self, group_id: str) -> str | None:
        """Return the type of an existing group, or None if no such group has been read."""
        group = self._groups.get(group_id)
        return None if group is None else group.group_type

    async def _list(self) -> Listing:
        """List the groups at the topic's end, and those that replicas report as changed.

        If no replica answers for a partition, run the barrier's other rounds instead. Do not wait for the
        topic's end if one of the barrier's responses is missing.
        """
        first_round, *other_rounds = self._barrier_rounds
        answers = await self._ask(first_round, lists_changed=True)
        changed = [group for answer in answers for group in answer.changed or ()]
        # Only replicas set `changed`.
        are_all_by_replicas = not any(answer.changed is UNSET for answer in answers)
        if are_all_by_replicas or (
            all(map(_is_answered, answers)) and await self._are_answered(other_rounds)
        ):
            await self._reach_end()
        return await asyncio.to_thread(self._merge, changed if are_all_by_replicas else ())

    def _merge(self, changed: Iterable[ListedGroup]) -> Listing:
        """Return the groups of the view, updated by the changed groups, without deleted ones. Runs in a
        worker thread.
        """
        groups = {group.group_id: group for group in self._groups.groups()}
        groups |= {group.group_id: _known_group(group) for group in changed}
        existing = (group for group in groups.values() if group.state != DEAD)
        return sorted(existing, key=attrgetter("group_id"))

    async def _catch_up(self) -> Sequence[str]:
        """Return the ids of groups that have settings, after the barrier and the topic's end.

        If a response of the barrier is missing, do not wait for the topic's end.
        """
        if await self._are_answered(self._barrier_rounds):
            await self._reach_end()
        return await asyncio.to_thread(self._groups.configured_group_ids)

    async def _are_answered(self, rounds: Sequence[Sequence[str]]) -> bool:
        """Send the barrier's requests. Return False if a response is missing, which the backend has
        logged.
        """
        for group_ids in rounds:
            if not all(map(_is_answered, await self._ask(group_ids))):
                return False
        return True

    async def _reach_end(self) -> None:
        if not await self._groups.reach_end(self._timeout_s):
            log.warning("the groups topic is not read to its end, ListGroups may miss the latest changes")

    async def _ask(
        self, group_ids: Sequence[str], *, lists_changed: bool | UnsetType = UNSET
    ) -> list[DescribeGroupResponse]:
        """Send a request of the barrier for each of these group ids."""
        headers = (
            self._backend.header(group_id, BARRIER_VERSION, _CLIENT_ID, client_host="", principal=ANONYMOUS)
            for group_id in group_ids
        )
        requests = (barrier_request(header, lists_changed=lists_changed) for header in headers)
        return await asyncio.gather(*map(self._backend.ask, requests))


def _known_group(group: ListedGroup) -> KnownGroup:
    """Return the cached form of a group that a replica reports as changed."""
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
    """Return False for the COORDINATOR_NOT_AVAILABLE that the backend itself returns if no answer comes. Only
    the coordinator's own responses name their `request`.
    """
    return bool(answer.request) or answer.error_code is not ErrorCode.COORDINATOR_NOT_AVAILABLE
