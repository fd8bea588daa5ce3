"""The groups of a RocketMQ cluster for the page, by polls, which update the fleet: the page's data of all
groups. The clients of all groups are polled. For groups that readers have opened, the clients' queues and the
offsets are polled, too.
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
"""Maximum number of groups that are polled because readers have opened them."""
PATIENCE_S, WITH_HISTORY_PATIENCE_S = 20.0, 1.0
"""The maximum times that a reader waits for a group's first poll, without and with the group's history."""
_PAUSE_S = 1.0


class PolledPage(Struct, frozen=True, kw_only=True):
    """The data of the page of a group that is polled."""

    group_id: str
    now_ms: int
    report: PollReport
    text: str  # the report of `why`


@dataclass(slots=True)
class _Watched:
    """The last polls of a group that a reader has opened."""

    polls: deque[GroupPoll] = field(default_factory=lambda: deque(maxlen=4))
    first_poll: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that readers share it
    until_s: float = 0.0  # monotonic time at which polling ends


class ClusterFollower(FollowerThread):
    """A thread that updates a fleet by polling a RocketMQ cluster, until stopped.

    With `with_history`, the fleet has the groups from another source. Then only the groups that readers have
    opened are polled, and their open pages reload after each poll.
    """

    def __init__(self, servers: RocketMqServers, fleet: Fleet, *, with_history: bool = False) -> None:
        super().__init__("page-rocketmq-follower", "polling the RocketMQ cluster for the page")
        self._servers = servers
        self._fleet = fleet
        self._has_history = with_history
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._watched: dict[str, _Watched] = {}
        self._failed_groups = 0  # number of groups whose poll failed in the last round

    def page(self, group_id: str) -> PolledPage:
        """Return a group's page, from a poll that is at most some seconds old. Any thread may call this.

        Raises ClusterUnavailable, or HistoryUnavailable if the group is unknown.
        """
        return self._page(group_id, PATIENCE_S)

    def page_with_history(self, group_id: str) -> PolledPage | str:
        """Return a group's page as `page` does, or the reason why there is none.

        If the group is still being polled, its open pages reload afterwards.
        """
        try:
            return self._page(group_id, WITH_HISTORY_PATIENCE_S)
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
            future.add_done_callback(lambda _: self._fleet.reload_pages(group_id))
            raise ClusterUnavailable(f"{group_id} is still being polled: load the page again") from None
        except CancelledError:
            raise ClusterUnavailable("the page is stopping") from None
        text = poll_report_text(report, Clock())[:]  # a slice is a plain str, which JSON can have
        return PolledPage(group_id=group_id, now_ms=now_ms(), report=report, text=text)

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        remarks = [f"made of polls of the RocketMQ cluster at {self._servers}"]
        if self._failed_groups:
            remarks.append(
                f"{count(self._failed_groups, 'group')} that the brokers do not show may be missing"
            )
        return remarks

    def stop(self) -> None:
        """Stop the thread, also during a poll."""
        self._stopped.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        super().stop()

    def _connect_and_follow(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._follow())
        self._loop = None

    async def _follow(self) -> None:
        async with ClusterPoller(self._servers) as self._cluster, asyncio.TaskGroup() as tasks:
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            if not self._has_history:
                tasks.create_task(self._poll_all())
            tasks.create_task(self._poll_watched())
            if self._stopped.is_set():  # before `self._task` was set
                raise asyncio.CancelledError

    async def _poll_all(self) -> None:
        while True:
            try:
                await self._poll_round()
            except ClusterUnavailable as error:
                self._warning.failed(error)
            await asyncio.sleep(_PAUSE_S)

    async def _poll_round(self) -> None:
        """Poll the clients of all groups. Raises ClusterUnavailable if the poll of every group fails."""
        group_ids = await self._cluster.group_ids()
        failures: list[ClusterUnavailable] = []
        for group_id in {*self._fleet.group_ids()} - {*group_ids}:
            self._update_fleet(group_id, None)
        for group_id in group_ids:
            try:
                await self._poll_clients(group_id)
                self._worked()
            except ClusterUnavailable as error:
                failures.append(error)
        self._failed_groups = len(failures)
        if failures and len(failures) == len(group_ids):
            raise failures[0]
        self._worked()
        self._fleet.mark_complete()
        self._fleet.trim(now_ms())

    async def _poll_clients(self, group_id: str) -> None:
        """Poll the clients of a group. Raises ClusterUnavailable."""
        views = await self._cluster.views(group_id)
        last_view = self._fleet.view(group_id)
        if last_view is None and not any(view.connections for view in views):
            notes: list[str] = []
            topics = await self._cluster.topics_with_offsets(group_id, notes)
            if not (topics or notes):
                return  # no such group: its id comes from the retry topic of a group that consumes by pop
        view = _snapshot(group_id, views)
        if last_view is None or replace(view, at_ms=last_view.at_ms) != last_view:  # it has changed
            self._update_fleet(group_id, view)

    def _update_fleet(self, group_id: str, view: GroupSnapshot | None) -> None:
        """Store a group's view, or that it has ended. Polls of clients show neither entries nor offsets."""
        self._fleet.update_group(
            group_id, view, entries=(), commits={}, now_ms=now_ms(), replaces_entries=False
        )

    async def _poll_watched(self) -> None:
        """Poll each watched group repeatedly, until WATCHED_S after a reader last opened it."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            for group_id, watched in list(self._watched.items()):
                if watched.until_s < time.monotonic():
                    self._watched.pop(group_id, None)
                elif watched.polls and now_ms() - watched.polls[-1].at_ms >= STANDS_MS:
                    with suppress(ClusterUnavailable, HistoryUnavailable):  # the next reader gets the error
                        await self._poll_once(group_id, watched)
                        self._fleet.reload_pages(group_id)

    async def _report(self, group_id: str) -> PollReport:
        """Return the report on the last polls of a group, after the first poll if there is none yet.

        The group is then polled again for WATCHED_S.
        """
        watched = self._watched.setdefault(group_id, _Watched())
        watched.until_s = time.monotonic() + WATCHED_S
        async with watched.first_poll:
            if not watched.polls:
                await self._poll_once(group_id, watched)
        if len(self._watched) > MAX_WATCHED:
            least_recent = min(self._watched, key=lambda name: self._watched[name].until_s)
            del self._watched[least_recent]
        return poll_report(watched.polls[-1], earlier_poll(watched.polls))

    async def _poll_once(self, group_id: str, watched: _Watched) -> None:
        """Poll a group once. If that fails, do not poll it again until a reader opens it."""
        try:
            watched.polls.append(await self._cluster.poll(group_id))
        except (ClusterUnavailable, HistoryUnavailable):
            self._watched.pop(group_id, None)
            raise


def _snapshot(group_id: str, views: list[BrokerView]) -> GroupSnapshot:
    """Return the group as a snapshot of a coordinator would have it, from the brokers' views."""
    poll = GroupPoll(group_id=group_id, at_ms=now_ms(), views=views)
    # The settings of the group come from the broker with the most connections.
    view = max(poll.answered_views, key=lambda view: len(view.connections), default=BrokerView(broker=""))
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
        duplicate_client_ids={
            client_id: addresses for client_id, (_, addresses) in poll.duplicates().items()
        },
        quarantined=None,
    )
