"""The groups of a RocketMQ cluster for the page, by polls: the clients of all groups, and of the groups that
readers look at also the queues that the clients hold, and the offsets.
"""

import asyncio
import time
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.history import ConnectionSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.requests import ConsumeType, MessageModel
from kafka_why.now import now_ms
from kafka_why.page.fleet import Fleet
from kafka_why.topic_reader import FollowerThread
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.changes import poll_report_text
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller, ClusterUnavailable
from kafka_why.why.rocketmq.polled.model import BrokerView, GroupPoll, PollReport
from kafka_why.why.rocketmq.polled.symptoms import STANDS_MS, earlier_poll, poll_report
from kafka_why.wording import Clock, count

WATCHED_S = 30.0
"""The time for which a group is polled again after a reader has opened it."""
MAX_WATCHED = 10
PATIENCE_S, BESIDE_PATIENCE_S = 20.0, 1.0
"""The longest times that a reader waits for a group's first poll, and for one beside the group's history."""
_PAUSE_S = 1.0


class PolledPage(Struct, frozen=True, kw_only=True):
    """The data of a group's page."""

    group_id: str
    now_ms: int
    report: PollReport
    text: str  # the report of `why`


@dataclass(slots=True)
class _Watched:
    """The last polls of a group."""

    polls: deque[GroupPoll] = field(default_factory=lambda: deque(maxlen=4))
    polling: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during the first poll
    until_s: float = 0.0


class ClusterFollower(FollowerThread):
    """A thread that feeds a fleet by polling a RocketMQ cluster, until stopped.

    If it `is_beside` a history, it polls only the groups that readers look at, and touches them.
    """

    def __init__(self, servers: RocketMqServers, fleet: Fleet, *, is_beside: bool = False) -> None:
        super().__init__("page-rocketmq-follower", "polling the RocketMQ cluster for the page")
        self._servers = servers
        self._fleet = fleet
        self._is_beside = is_beside
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self._watched: dict[str, _Watched] = {}
        self._failed = 0

    def page(self, group_id: str) -> PolledPage:
        """Return a group's page by a poll of at most some seconds ago. For any thread.

        Raises ClusterUnavailable, or HistoryUnavailable if the group is unknown.
        """
        return self._page(group_id, PATIENCE_S)

    def page_beside(self, group_id: str) -> PolledPage | str:
        """Return a group's page as `page` does, or the reason why there is none.

        A group that is still being polled is touched afterwards.
        """
        try:
            return self._page(group_id, BESIDE_PATIENCE_S)
        except (ClusterUnavailable, HistoryUnavailable) as error:
            return str(error)

    def _page(self, group_id: str, patience_s: float) -> PolledPage:
        loop = self._loop
        if loop is None:
            raise ClusterUnavailable(f"{self._servers} is not polled yet")
        future = asyncio.run_coroutine_threadsafe(self._report(group_id), loop)
        try:
            report = future.result(patience_s)
        except TimeoutError:
            future.add_done_callback(lambda _: self._fleet.touch(group_id))
            raise ClusterUnavailable(f"{group_id} is still being polled: load the page again") from None
        except CancelledError:
            raise ClusterUnavailable("the page is stopping") from None
        text = poll_report_text(report, Clock())[:]  # a plain str, which JSON can have
        return PolledPage(group_id=group_id, now_ms=now_ms(), report=report, text=text)

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        found = [f"made of polls of the RocketMQ cluster at {self._servers}"]
        if self._failed:
            found.append(f"{count(self._failed, 'group')} that the brokers do not show may be missing")
        return found

    def stop(self) -> None:
        """Stop the thread, also during a poll."""
        self._stopped.set()
        loop, following = self._loop, self._following
        if loop is not None and following is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(following.cancel)
        super().stop()

    def _connect_and_follow(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._follow())
        self._loop = None

    async def _follow(self) -> None:
        async with ClusterPoller(self._servers) as self._cluster, asyncio.TaskGroup() as tasks:
            self._following, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            if not self._is_beside:
                tasks.create_task(self._poll_all())
            tasks.create_task(self._poll_watched())
            if self._stopped.is_set():  # before `stop` could cancel
                raise asyncio.CancelledError

    async def _poll_all(self) -> None:
        while True:
            try:
                await self._round()
            except ClusterUnavailable as error:
                self._warning.failed(error)
            await asyncio.sleep(_PAUSE_S)

    async def _round(self) -> None:
        group_ids, failures = await self._cluster.group_ids(), list[ClusterUnavailable]()
        for group_id in {*self._fleet.group_ids()} - {*group_ids}:
            self._fleet.take(group_id, None, (), {}, now_ms(), anew=False)
        for group_id in group_ids:
            try:
                await self._poll(group_id)
                self._worked()
            except ClusterUnavailable as error:
                failures.append(error)
        self._failed = len(failures)
        if failures and len(failures) == len(group_ids):
            raise failures[0]
        self._worked()
        self._fleet.complete()
        self._fleet.trim(now_ms())

    async def _poll(self, group_id: str) -> None:
        """Poll the clients of a group. Raises ClusterUnavailable."""
        views = await self._cluster.views(group_id)
        known, notes = self._fleet.view(group_id), list[str]()
        if known is None and not any(view.connections for view in views):
            topics = await self._cluster.topics_with_offsets(group_id, notes)
            if not (topics or notes):
                return  # its topic for retries belongs to another group, which pops
        view = _snapshot(group_id, views)
        if known is None or replace(view, at_ms=known.at_ms) != known:
            self._fleet.take(group_id, view, (), {}, now_ms(), anew=False)

    async def _poll_watched(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            for group_id, watched in list(self._watched.items()):
                if watched.until_s < time.monotonic():
                    self._watched.pop(group_id, None)
                elif watched.polls and now_ms() - watched.polls[-1].at_ms >= STANDS_MS:
                    with suppress(ClusterUnavailable, HistoryUnavailable):  # the next reader gets the error
                        await self._poll_once(group_id, watched)
                        self._fleet.touch(group_id)

    async def _report(self, group_id: str) -> PollReport:
        watched = self._watched.setdefault(group_id, _Watched())
        watched.until_s = time.monotonic() + WATCHED_S
        async with watched.polling:
            if not watched.polls:
                await self._poll_once(group_id, watched)
        if len(self._watched) > MAX_WATCHED:
            del self._watched[min(self._watched, key=lambda name: self._watched[name].until_s)]
        return poll_report(watched.polls[-1], earlier_poll(watched.polls))

    async def _poll_once(self, group_id: str, watched: _Watched) -> None:
        try:
            watched.polls.append(await self._cluster.poll(group_id))
        except (ClusterUnavailable, HistoryUnavailable):
            self._watched.pop(group_id, None)
            raise


def _snapshot(group_id: str, views: list[BrokerView]) -> GroupSnapshot:
    poll = GroupPoll(group_id=group_id, at_ms=now_ms(), views=views)
    view = max(poll.answered, key=lambda view: len(view.connections), default=BrokerView(broker=""))
    return GroupSnapshot(
        group_id=group_id,
        incarnation="",
        seq=0,
        at_ms=poll.at_ms,
        # None for a model that only a newer RocketMQ knows, such as LITE_SELECTIVE.
        message_model=MessageModel.__members__.get(view.message_model or ""),
        consume_type=ConsumeType.__members__.get(view.consume_type or ""),
        consume_from_where=None,
        consumers=[
            ConnectionSnapshot(
                f"{c.address} at {view.broker}", c.client_id, c.language, c.version, view.broker, c.address
            )
            for view in views
            for c in view.connections
        ],
        producers=[],
        subscriptions=view.subscriptions,
        request_modes={},
        duplicate_client_ids={c: addresses for c, (_, addresses) in poll.duplicates().items()},
        quarantined=None,
    )
