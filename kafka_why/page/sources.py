"""The sources of the page's data, and the decision when an open page is notified of new content."""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_why.groups.gather import BrokerGroup
from kafka_why.lifetimes import BackgroundThread
from kafka_why.now import now_ms
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.deliveries import NO_DELIVERIES, DeliveriesCache
from kafka_why.page.fleet import Fleet
from kafka_why.page.histories import Analyses, Histories
from kafka_why.page.members import Members
from kafka_why.page.overview import GroupLine
from kafka_why.page.rocketmq_cluster import PolledPage
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.service_state import StateReader


@dataclass(frozen=True)
class DataSource:
    """A source of the page's data, with the threads that read it."""

    fleet: Fleet
    histories: Histories
    read_age_s: Callable[[], float]  # age of the last read of the topics
    followers: tuple[BackgroundThread, ...] = ()
    service_topics: ServiceTopics | None = None  # None for the brokers' own topic
    deliveries: DeliveriesCache = NO_DELIVERIES
    remarks: Callable[[], list[str]] = list  # sentences about the source, and what is missing in it
    polled: Callable[[str], PolledPage] | None = None  # returns a group's page; only for a RocketMQ cluster


@dataclass(frozen=True, kw_only=True)
class PageSources(DataSource):
    """The sources of the page's data.

    `lines` and `members` are at least as new as the version that an earlier call of `lines_version` returned.
    """

    lines: Callable[[], list[GroupLine]]  # all groups
    members: Callable[[], Members]  # clients and hosts of all groups
    lines_version: Callable[[], int]  # grows with each change of the lines
    analyses: Analyses
    service_state: StateReader | None  # None if the address of the coordinator's metrics is unknown
    connect_to: str  # the address that consumers connect to
    log: CoordinatorLog | None = None  # None if the location of the coordinator's log is unknown
    broker_groups: Callable[[], list[BrokerGroup]] = list  # groups of the broker's own coordinator
    now_ms: Callable[[], int] = now_ms
    # What to show beside the history of a RocketMQ group.
    polled_with_history: Callable[[str], PolledPage | str | None] = lambda _: None


HOLD_S = 5.0
"""A change is held back for at most this time. Then the reader gets the present state."""


class HeldVersion:
    """The last version that one open page was notified of.

    A new version is held back until a reloaded page would show it. Otherwise the reader would reload in vain
    and delay the computation.
    """

    def __init__(self) -> None:
        self._sent: int | None = None
        self._held_since_s: float | None = None  # since when a newer version is held back, or None

    def version(self, newest: int | None, is_shown: Callable[[], bool], now_s: float) -> int | None:
        """Return the version to send to the page.

        A newer version than the page's is held back while `is_shown` returns False, but at most for HOLD_S.
        Without a newer version, `is_shown` is not called.
        """
        if self._sent is not None and newest != self._sent:
            if self._held_since_s is None:
                self._held_since_s = now_s
            if now_s - self._held_since_s < HOLD_S and not is_shown():
                return self._sent
        self._held_since_s = None
        self._sent = newest
        return newest
