"""The page as a process serves it: the threads that read the topics, and the web server."""

import ipaddress
import socket
from functools import partial

from kafka_why.broker_groups import BrokerGroups
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Startable
from kafka_why.page.app import Sources, app
from kafka_why.page.commands import Source
from kafka_why.page.courses import Courses
from kafka_why.page.deliveries import KeptDeliveries
from kafka_why.page.fleet import Fleet
from kafka_why.page.follower import Follower
from kafka_why.page.histories import Histories
from kafka_why.page.overview import OverviewThread
from kafka_why.page.security import Access
from kafka_why.page.service_topics import ServiceFollower, ServiceTopics
from kafka_why.service_state import StateReader
from kafka_why.web import Tls, Web, names_of
from kafka_why.why.deliveries.reading import read_deliveries
from kafka_why.why.history import read_history


class Page(Startable):
    """Serves the page on a listening socket until stopped.

    If `access` is None, only the names of this machine's loopback address are answered. `connect_to` is the
    address that consumers connect to, `metrics_url` that of the coordinator's metrics, and `log` is where its
    log is. What is None is not known; without `log` nobody can ask for `whatif` and `replay`.
    `watches_broker`: no group should use the broker's own coordinator, so those that do are shown.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        listening: socket.socket,
        *,
        connect_to: str,
        access: Access | None = None,
        tls: Tls | None = None,
        log: Source | None = None,
        metrics_url: str | None = None,
        watches_broker: bool = False,
    ) -> None:
        fleet, topics = Fleet(layout), ServiceTopics(is_observed=layout.is_observed)
        self._follower = Follower(client_config, layout, fleet)
        self._overview = overview = OverviewThread(fleet)
        self._service = ServiceFollower(client_config, layout, topics)
        self._broker_groups = BrokerGroups(client_config) if watches_broker else None
        histories = Histories(partial(read_history, client_config, layout), fleet)
        self._courses = courses = Courses(histories, fleet)
        sources = Sources(
            fleet=fleet,
            lines=lambda: overview.lines,
            members=lambda: overview.members,
            lines_version=lambda: overview.version,
            histories=histories,
            courses=courses,
            read_age_s=self._follower.read_age_s,
            service_topics=topics,
            service_state=None if metrics_url is None else StateReader(metrics_url),
            connect_to=connect_to,
            log=log,
            deliveries=KeptDeliveries(partial(read_deliveries, client_config, layout)),
            broker_groups=lambda: [] if self._broker_groups is None else self._broker_groups.groups,
        )
        self._web = Web(app(sources, access or Access(names_of(listening))), listening, tls)

    def start(self) -> None:
        """Read the topics, and serve. Raises WebUnavailable."""
        self._follower.start()
        self._overview.start()
        self._service.start()
        if self._broker_groups is not None:
            self._broker_groups.start()
        self._web.start()

    def stop(self) -> None:
        """End both, which takes as long as a request to the brokers at most."""
        self._web.stop()
        if self._broker_groups is not None:
            self._broker_groups.stop()
        self._service.stop()
        self._courses.close()
        self._overview.stop()
        self._follower.stop()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
