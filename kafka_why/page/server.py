"""The page as a process serves it: the threads that read its sources, and the web server."""

import ipaddress
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.gather import BrokerGroups
from kafka_why.lifetimes import BackgroundThread, Startable
from kafka_why.page.app import app
from kafka_why.page.cluster_followers import OffsetsFollower, PollingFollower
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.deliveries import NO_DELIVERIES, DeliveriesCache
from kafka_why.page.fleet import Fleet
from kafka_why.page.histories import Analyses, Histories
from kafka_why.page.overview import OverviewThread
from kafka_why.page.rocketmq_cluster import ClusterFollower, PolledPage
from kafka_why.page.security import Access
from kafka_why.page.sources import PageSources
from kafka_why.page.topics_followers import GroupsFollower, ServiceFollower, ServiceTopics
from kafka_why.service_state import StateReader
from kafka_why.topic_reader import BrokersOwn
from kafka_why.web import TlsFiles, WebServer, names_of
from kafka_why.why.deliveries.report import read_deliveries
from kafka_why.why.history import History, HistoryUnavailable, read_history
from kafka_why.why.offsets_topic import read_offsets_topic


class _DataSource(NamedTuple):
    """A source of the page's data. Other fields are those of `PageSources`."""

    fleet: Fleet
    histories: Histories
    followers: tuple[BackgroundThread, ...]  # threads to start
    read_age_s: Callable[[], float]
    service_topics: ServiceTopics | None = None
    deliveries: DeliveriesCache = NO_DELIVERIES
    remarks: Callable[[], list[str]] = list
    polled: Callable[[str], PolledPage] | None = None


def _from_our_topics(client_config: ClientConfig, layout: TopicLayout) -> _DataSource:
    fleet, topics = Fleet(layout), ServiceTopics(is_observed=layout.is_observed)
    follower = GroupsFollower(client_config, layout, fleet)
    return _DataSource(
        fleet,
        Histories(partial(read_history, client_config, layout), fleet),
        (follower, ServiceFollower(client_config, layout, topics)),
        follower.read_age_s,
        topics,
        DeliveriesCache(partial(read_deliveries, client_config, layout)),
    )


def _from_polls(client_config: ClientConfig) -> _DataSource:
    fleet = Fleet()
    follower = PollingFollower(client_config, fleet)
    histories = Histories(follower.history, fleet, continues=False)
    return _DataSource(fleet, histories, (follower,), follower.read_age_s, remarks=follower.remarks)


def _from_offsets_topic(client_config: ClientConfig) -> _DataSource:
    fleet = Fleet()
    follower = OffsetsFollower(client_config, fleet)

    def history(group_id: str, since_ms: int) -> History:
        return read_offsets_topic(client_config, group_id, since_ms)

    # One group's history is read from an earlier offset, so its entries have other numbers than the fleet's.
    histories = Histories(history, fleet, continues=False)
    return _DataSource(fleet, histories, (follower,), follower.read_age_s, remarks=follower.remarks)


def _from_rocketmq(servers: RocketMqServers) -> _DataSource:
    def history(group_id: str, _: int) -> History:
        raise HistoryUnavailable(f"group {group_id} is known by polls only")

    fleet = Fleet()
    follower = ClusterFollower(servers, fleet)
    return _DataSource(
        fleet,
        Histories(history, fleet),
        (follower,),
        follower.read_age_s,
        remarks=follower.remarks,
        polled=follower.page,
    )


_FALLBACKS = {BrokersOwn.OFFSETS_TOPIC: _from_offsets_topic, BrokersOwn.POLLS: _from_polls}


def _data_source(
    client_config: ClientConfig | None, source: TopicLayout | BrokersOwn | RocketMqServers
) -> _DataSource:
    if isinstance(source, RocketMqServers):
        return _from_rocketmq(source)
    assert client_config is not None, "a source in Kafka's cluster has the cluster's settings"
    if isinstance(source, TopicLayout):
        return _from_our_topics(client_config, source)
    return _FALLBACKS[source](client_config)


class Page(Startable):
    """A server of the page on a listening socket, from `start` to `stop`.

    `source` is where the data is, in Kafka's cluster unless it is a RocketMQ cluster. If `access` is None,
    only the names of this machine's loopback address are answered. `connect_to` is the address that consumers
    connect to, `metrics_url` that of the coordinator's metrics, `log` the location of its log. Each is None
    if unknown. Without `log` the page cannot run `whatif` and `replay`. With `watches_broker` the page also
    shows groups that use the broker's own coordinator, because none should. With `rocketmq` the pages of
    RocketMQ groups also have what polls of that cluster show.
    """

    def __init__(
        self,
        client_config: ClientConfig | None,
        source: TopicLayout | BrokersOwn | RocketMqServers,
        listening: socket.socket,
        *,
        connect_to: str,
        access: Access | None = None,
        tls: TlsFiles | None = None,
        log: CoordinatorLog | None = None,
        metrics_url: str | None = None,
        watches_broker: bool = False,
        rocketmq: RocketMqServers | None = None,
    ) -> None:
        read = _data_source(client_config, source)
        fleet, histories = read.fleet, read.histories
        self._followers = read.followers
        beside = None if rocketmq is None else ClusterFollower(rocketmq, fleet, is_beside=True)
        if beside is not None:
            self._followers = (*self._followers, beside)
        self._overview = overview = OverviewThread(fleet)
        self._broker_groups = BrokerGroups(client_config) if client_config and watches_broker else None
        self._analyses = analyses = Analyses(histories, fleet)
        sources = PageSources(
            fleet=fleet,
            lines=lambda: overview.lines,
            members=lambda: overview.members,
            lines_version=lambda: overview.version,
            histories=histories,
            analyses=analyses,
            read_age_s=read.read_age_s,
            service_topics=read.service_topics,
            service_state=None if metrics_url is None else StateReader(metrics_url),
            connect_to=connect_to,
            log=log,
            deliveries=read.deliveries,
            remarks=read.remarks,
            polled=read.polled,
            polled_beside=None if beside is None else beside.page_beside,
            broker_groups=lambda: [] if self._broker_groups is None else self._broker_groups.groups,
        )
        self._web = WebServer(app(sources, access or Access(names_of(listening))), listening, tls)

    def start(self) -> None:
        """Start to read the topics and to serve. Raises WebUnavailable."""
        for thread in (*self._followers, self._overview):
            thread.start()
        if self._broker_groups is not None:
            self._broker_groups.start()
        self._web.start()

    def stop(self) -> None:
        """Stop the threads and the server. This takes at most one request to the brokers."""
        self._web.stop()
        if self._broker_groups is not None:
            self._broker_groups.stop()
        self._analyses.close()
        for thread in (self._overview, *self._followers):
            thread.stop()


def is_loopback(host: str) -> bool:
    """Return True if `host` is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
