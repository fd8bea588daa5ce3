"""The sources of the page's data."""

from collections.abc import Callable
from typing import NamedTuple

from kafka_why.broker_groups import BrokerGroup
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


class PageSources(NamedTuple):
    """The sources of the page's data.

    `lines` are all groups and `members` their clients and hosts, both at least as new as the fleet's
    `lines_version`. `read_age_s` is the age of the last read of the topics. `service_topics` is None for the
    brokers' own topic, and `remarks` say how much of that was read. `service_state` and `log` are None if the
    coordinator's are unknown. `broker_groups` are those of the embedded broker's coordinator. `polled`
    returns the page of a group of a RocketMQ cluster.
    """

    fleet: Fleet
    lines: Callable[[], list[GroupLine]]
    members: Callable[[], Members]
    lines_version: Callable[[], int]
    histories: Histories
    analyses: Analyses
    read_age_s: Callable[[], float]
    service_topics: ServiceTopics | None
    service_state: StateReader | None
    connect_to: str
    deliveries: DeliveriesCache = NO_DELIVERIES
    log: CoordinatorLog | None = None
    broker_groups: Callable[[], list[BrokerGroup]] = list
    remarks: Callable[[], list[str]] = list
    now_ms: Callable[[], int] = now_ms
    polled: Callable[[str], PolledPage] | None = None
