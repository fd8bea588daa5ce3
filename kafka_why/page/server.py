"""The page as a process serves it: the threads that read its sources, and the web server."""

import socket
from functools import partial

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.gather import BrokerGroups
from kafka_why.lifetimes import Startable
from kafka_why.page.app import app
from kafka_why.page.cluster_followers import OffsetsFollower, PollingFollower
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.deliveries import DeliveriesCache
from kafka_why.page.fleet import Fleet
from kafka_why.page.histories import Analyses, Histories
from kafka_why.page.overview import OverviewThread
from kafka_why.page.rocketmq_cluster import ClusterFollower
from kafka_why.page.security import Access
from kafka_why.page.sources import DataSource, PageSources
from kafka_why.page.topics_followers import GroupsFollower, ServiceFollower, ServiceTopics
from kafka_why.service_state import StateReader
from kafka_why.topic_reader import BrokersOwn
from kafka_why.web import TlsFiles, WebServer, names_of
from kafka_why.why.deliveries.report import read_deliveries
from kafka_why.why.history import History, HistoryUnavailable, read_history
from kafka_why.why.offsets_topic import read_offsets_topic


def _from_layout(client_config: ClientConfig, layout: TopicLayout) -> DataSource:
    fleet, topics = Fleet(layout), ServiceTopics(is_observed=layout.is_observed)
    follower = GroupsFollower(client_config, layout, fleet)
    return DataSource(
        fleet,
        Histories(partial(read_history, client_config, layout), fleet),
        follower.read_age_s,
        followers=(follower, ServiceFollower(client_config, layout, topics)),
        service_topics=topics,
        deliveries=DeliveriesCache(partial(read_deliveries, client_config, layout)),
    )


def _from_polls(client_config: ClientConfig) -> DataSource:
    fleet = Fleet()
    follower = PollingFollower(client_config, fleet)
    histories = Histories(follower.history, fleet, can_extend=False)
    return DataSource(fleet, histories, follower.read_age_s, (follower,), remarks=follower.remarks)


def _from_offsets_topic(client_config: ClientConfig) -> DataSource:
    fleet = Fleet()
    follower = OffsetsFollower(client_config, fleet)

    # An entry's `seq` counts from the offset where reading began. The reader begins at an earlier offset than
    # the follower, so the same entry has another `seq` in the fleet.
    histories = Histories(partial(read_offsets_topic, client_config), fleet, can_extend=False)
    return DataSource(fleet, histories, follower.read_age_s, (follower,), remarks=follower.remarks)


def _from_rocketmq(servers: RocketMqServers) -> DataSource:
    def history(group_id: str, _since_ms: int) -> History:
        raise HistoryUnavailable(f"group {group_id} is known by polls only")

    fleet = Fleet()
    follower = ClusterFollower(servers, fleet)
    return DataSource(
        fleet,
        Histories(history, fleet),
        follower.read_age_s,
        followers=(follower,),
        remarks=follower.remarks,
        polled=follower.page,
    )


_SOURCES_WITHOUT_COORDINATOR = {BrokersOwn.OFFSETS_TOPIC: _from_offsets_topic, BrokersOwn.POLLS: _from_polls}


def _data_source(
    client_config: ClientConfig | None, source: TopicLayout | BrokersOwn | RocketMqServers
) -> DataSource:
    if isinstance(source, RocketMqServers):
        return _from_rocketmq(source)
    assert client_config is not None, "a source in Kafka's cluster has the cluster's settings"
    if isinstance(source, TopicLayout):
        return _from_layout(client_config, source)
    return _SOURCES_WITHOUT_COORDINATOR[source](client_config)


class Page(Startable):
    """A server of the page on a listening socket, from `start` to `stop`.

    `source` is a RocketMQ cluster, or data in the Kafka cluster of `client_config`. If `access` is None, only
    this machine's browsers are answered. `connect_to` is the address that consumers connect to. `metrics_url`
    is the address of the coordinator's metrics, and `log` the location of its log. Both are None if unknown.
    Without `log` the page cannot run `whatif` and `replay`. With `watches_broker` the page also shows groups
    that use the broker's own coordinator by mistake. With `rocketmq` the pages of RocketMQ groups also show
    the results of polls of that cluster.
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
        data = _data_source(client_config, source)
        cluster = None if rocketmq is None else ClusterFollower(rocketmq, data.fleet, with_history=True)
        overview = OverviewThread(data.fleet)
        broker_groups = BrokerGroups(client_config) if client_config and watches_broker else None
        threads = (*data.followers, cluster, overview, broker_groups)
        self._threads = [thread for thread in threads if thread is not None]
        self._analyses = Analyses(data.histories, data.fleet)
        sources = PageSources(
            **vars(data),
            lines=lambda: overview.lines,
            members=lambda: overview.members,
            lines_version=lambda: overview.version,
            analyses=self._analyses,
            service_state=None if metrics_url is None else StateReader(metrics_url),
            connect_to=connect_to,
            log=log,
            polled_with_history=(lambda _: None) if cluster is None else cluster.page_with_history,
            broker_groups=lambda: [] if broker_groups is None else broker_groups.groups,
        )
        self._web = WebServer(app(sources, access or Access(names_of(listening))), listening, tls)

    def start(self) -> None:
        """Start to read the topics and to serve. Raises WebUnavailable."""
        for thread in self._threads:
            thread.start()
        self._web.start()

    def stop(self) -> None:
        """Stop the threads and the server. This takes at most one request to the brokers."""
        self._web.stop()
        self._analyses.close()
        for thread in reversed(self._threads):
            thread.stop()
