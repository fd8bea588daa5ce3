"""The pure core as a gateway's backend."""

import asyncio
import math
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar, cast
from uuid import UUID

from msgspec import UNSET

from clients.coordinator_client import Header
from clients.pending import RequestTooLarge
from gateway.coordinator.failures import error_response, refuse_oversized
from gateway.coordinator.groups import KnownGroup, to_known_group
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.requests import AnyRequest, DescribeGroup, RegexResolved
from kafka_why.contract.kafka.responses import DescribeGroupResponse, ListedGroup
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.messages import ErrorCode, Request, Response
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of
from state.kafka.share_group import ShareGroup
from state.timeline import Row, Timeline
from tests.harness.raw_client import PATIENCE_S

R = TypeVar("R", bound=Response)


class CoreBackend:
    """The pure core as the gateway's backend. `asked` has the requests that reached the core.

    Tests may set: `away`, the coordinator does not answer; `unread`, the groups have not been read yet;
    `view_is_behind`, groups are shown as of the last `reach_end`; `stuck`, `reach_end` times out;
    `has_replica`, requests for the changed groups are answered at once; `held`, the responses of a group wait
    for its event.
    """

    def __init__(self) -> None:
        self.away = False
        self.answered_at_s = -math.inf
        self.unread = False
        self.view_is_behind = False
        self.stuck = False
        self.has_replica = False
        self.held: dict[str, asyncio.Event] = {}
        self._view: list[GroupSnapshot] = []
        self.now_ms = 0
        self.config = CoordinatorConfig()
        self.asked: list[Request[Any]] = []
        self.more = asyncio.Condition()
        self._timelines: dict[str, Timeline] = {}
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Return the number of requests without an answer."""
        return len(self._waiting)

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        return Header(
            group_id=group_id,
            correlation_id=str(next(self._numbers)),
            reply_partition=0,
            api_version=api_version,
            client_id=client_id,
            client_host=client_host,
            principal=principal,
        )

    def send(self, request: Request[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        return asyncio.ensure_future(self.ask(request, timeout_ms))

    async def ask(self, request: Request[R], timeout_ms: int | None = None) -> R:
        if self.away:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.has_replica and isinstance(request, DescribeGroup) and request.lists_changed is True:
            self.asked.append(request)
            return cast(R, self._changed(request))
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        name = request.correlation_id
        self._waiting[name] = future
        if request.group_id not in self._timelines:
            self._timelines[request.group_id] = Timeline(request.group_id, None, self.config)
        self._timelines[request.group_id].apply(
            Row(self.now_ms, f"requests-0-{name}", cast(AnyRequest, request))
        )
        self._settle()
        async with self.more:
            self.asked.append(request)
            self.more.notify_all()
        try:
            response = await future
            if request.group_id in self.held:
                await self.held[request.group_id].wait()
        finally:
            self._waiting.pop(name, None)
        assert isinstance(response, request.response_type)
        return response

    def refuse(self, request: Request[R], error: RequestTooLarge) -> asyncio.Future[R]:
        return refuse_oversized(self, request, error)

    def _changed(self, request: DescribeGroup) -> DescribeGroupResponse:
        """Return a replica's answer to a request for the changed groups."""
        listed = {group.group_id: group for group in self._view}
        now = {group.group_id: group for group in self._current()}
        changed: list[ListedGroup] = [
            to_known_group(group) for name, group in now.items() if listed.get(name) != group
        ]
        changed += [ListedGroup(name, DEAD) for name in listed.keys() - now.keys()]
        return DescribeGroupResponse(
            group_id=request.group_id,
            correlation_id=request.correlation_id,
            request="requests-0-0",
            error_code=ErrorCode.NONE,
            changed=changed,
        )

    def apply(self, request: RegexResolved | ShareStateResult) -> None:
        """Apply a request of the topic watcher, or of the share-state thread."""
        name = f"requests-0-{next(self._numbers)}"
        self._timelines[request.group_id].apply(Row(self.now_ms, name, request))
        self._settle()

    def carry_out_tasks(self, group_id: str) -> None:
        """Report to a share group that the share coordinator has completed all open tasks."""
        (view,) = (group for group in self._current() if group.group_id == group_id)
        assert view.consumer is not UNSET
        share = view.consumer.share
        assert share is not UNSET
        assert share.tasks is not UNSET
        for task in share.tasks:
            partitions = [
                ShareStatePartition(UUID(topic.topic_id), number)
                for topic in task.topics
                for number in topic.partitions
            ]
            self.apply(ShareStateResult(group_id=group_id, task=task.task, partitions=partitions))

    def advance(self, ms: int) -> None:
        """Advance the time, and fire the deadlines that become due."""
        self.now_ms += ms
        for timeline in self._timelines.values():
            timeline.fire_until(self.now_ms)
        self._settle()

    @property
    def has_caught_up(self) -> bool:
        return not self.unread

    def groups(self) -> list[KnownGroup]:
        return [to_known_group(group) for group in (self._view if self.view_is_behind else self._current())]

    def configured_group_ids(self) -> list[str]:
        return [
            group_id for group_id, t in sorted(self._timelines.items()) if getattr(t.group, "configs", {})
        ]

    def get(self, group_id: str) -> KnownGroup | None:
        return next((group for group in self.groups() if group.group_id == group_id), None)

    async def reach_end(self, timeout_s: float) -> bool:
        if self.stuck:
            await asyncio.sleep(timeout_s)
            return False
        self._view = self._current()
        return True

    def _current(self) -> list[GroupSnapshot]:
        return [
            view_of(t.group)
            for _, t in sorted(self._timelines.items())
            if isinstance(t.group, (ClassicGroup, ConsumerGroup, ShareGroup))
        ]

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked after each request."""
        async with asyncio.timeout(PATIENCE_S), self.more:
            await self.more.wait_for(condition)

    def _settle(self) -> None:
        for timeline in self._timelines.values():
            for effects in timeline.drain_effects():
                for reply in effects.replies:
                    future = self._waiting.pop(reply.response.correlation_id, None)
                    if future is not None and not future.done():
                        future.set_result(reply.response)
