"""The groups of a RocketMQ cluster for the page, by polls: the clients of all groups, and of the groups that
readers look at also the queues that the clients hold, and the offsets.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.requests import ConsumeType, MessageModel
from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot
from kafka_why.now import now_ms
from kafka_why.page.fleet import Fleet
from kafka_why.topic_reader import FollowerThread
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller, ClusterUnavailable
from kafka_why.why.rocketmq.polled.model import BrokerView, GroupPoll, PollReport
from kafka_why.why.rocketmq.polled.symptoms import STANDS_MS, earlier_poll, poll_report
from kafka_why.why.rocketmq.polled.text import poll_report_text
from kafka_why.why.wording import Clock

WATCHED_S = 30.0
"""A group is polled again for so long after somebody looked at it."""
MAX_WATCHED = 10
_PAUSE_S = 1.0


class PolledPage(Struct, frozen=True, kw_only=True):
    """The data of a group's page. `text` is the report of `why`."""

    group_id: str
    now_ms: int
    report: PollReport
    text: str


@dataclass(slots=True)
class _Watched:
    polls: deque[GroupPoll]
    until_s: float = 0.0


class ClusterFollower(FollowerThread):
    """A thread that feeds a fleet by polling a RocketMQ cluster, until stopped."""

    _retried = ClusterUnavailable

    def __init__(self, servers: RocketMqServers, fleet: Fleet) -> None:
        super().__init__("page-rocketmq-follower", "polling the RocketMQ cluster for the page")
        self._servers = servers
        self._fleet = fleet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[str, _Watched] = {}

    def page(self, group_id: str) -> PolledPage:
        """Return a group's page by a poll of some seconds ago at most, for any thread.

        Raises ClusterUnavailable, and HistoryUnavailable if the group is unknown.
        """
        loop = self._loop
        if loop is None:
            raise ClusterUnavailable("no name server answers, trying again")
        report = asyncio.run_coroutine_threadsafe(self._report(group_id), loop).result()
        text = poll_report_text(report, Clock())[:]  # a plain str, which JSON can have
        return PolledPage(group_id=group_id, now_ms=now_ms(), report=report, text=text)

    def remarks(self) -> list[str]:
        """Return the remark that says where the page's data is from."""
        return [f"made of polls of the RocketMQ cluster at {self._servers}"]

    def _connect_and_follow(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        async with ClusterPoller(self._servers) as self._cluster:
            await self._cluster.group_ids()
            self._loop = asyncio.get_running_loop()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._poll_all())
                    tasks.create_task(self._poll_watched())
            except* ClusterUnavailable as errors:
                raise errors.exceptions[0] from None
            finally:
                self._loop = None

    async def _poll_all(self) -> None:
        """Poll the clients of all groups in rounds."""
        while not self._stopped.is_set():
            group_ids = await self._cluster.group_ids()
            for group_id in {*self._fleet.group_ids()} - {*group_ids}:
                self._fleet.take(group_id, None, (), {}, now_ms(), anew=False)
            for group_id in group_ids:
                if self._stopped.is_set():
                    return
                view = _snapshot(group_id, await self._cluster.views(group_id))
                known = self._fleet.view(group_id)
                if known is None or replace(view, at_ms=known.at_ms) != known:
                    self._fleet.take(group_id, view, (), {}, now_ms(), anew=False)
                self._worked()
            self._fleet.complete()
            self._fleet.trim(now_ms())
            await asyncio.sleep(_PAUSE_S)

    async def _poll_watched(self) -> None:
        while not self._stopped.is_set():
            await asyncio.sleep(_PAUSE_S)
            for group_id, watched in list(self._watched.items()):
                if watched.until_s < time.monotonic():
                    del self._watched[group_id]
                elif now_ms() - watched.polls[-1].at_ms >= STANDS_MS:
                    with suppress(HistoryUnavailable):  # the next reader gets the error
                        watched.polls.append(await self._cluster.poll(group_id))
                        self._fleet.touch(group_id)

    async def _report(self, group_id: str) -> PollReport:
        watched = self._watched.get(group_id)
        if watched is None:
            watched = _Watched(deque([await self._cluster.poll(group_id)], maxlen=4))
            self._watched[group_id] = watched
        watched.until_s = time.monotonic() + WATCHED_S
        if len(self._watched) > MAX_WATCHED:
            del self._watched[min(self._watched, key=lambda name: self._watched[name].until_s)]
        return poll_report(watched.polls[-1], earlier_poll(watched.polls))


def _snapshot(group_id: str, views: list[BrokerView]) -> GroupSnapshot:
    poll = GroupPoll(group_id=group_id, at_ms=now_ms(), views=views)
    view = max(poll.answered, key=lambda view: len(view.connections), default=BrokerView(broker=""))
    return GroupSnapshot(
        group_id=group_id,
        incarnation="",
        seq=0,
        at_ms=poll.at_ms,
        message_model=None if view.message_model is None else MessageModel(view.message_model),
        consume_type=None if view.consume_type is None else ConsumeType(view.consume_type),
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
