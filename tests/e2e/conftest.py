"""The coordinator and the gateway that tests share where possible. Each test uses its own group names."""

import json
import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient

from cli.processes.child import Children
from embedded.broker import EmbeddedBroker
from gateway.net.server import GatewayOptions
from gateway.upstream.connections import Address
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import layout_on
from tests.e2e.gateway_clients import PARTITIONS, new_group
from tests.e2e.harness import create_topic
from tests.harness.rocketmq_clients import RocketMqAt, RocketMqCluster
from tests.harness.shared import PREFIX, START_TIMEOUT_S, Coordinated, Services
from tests.harness.transactions import Wire


@pytest.fixture(scope="session")
def coordinated(services: Services) -> Coordinated:
    """Return a coordinator that is ready, and its gateway."""
    return services.coordinator()


@pytest.fixture(scope="session")
def layout(broker: EmbeddedBroker, coordinated: Coordinated) -> TopicLayout:
    return layout_on(broker.client_config, PREFIX)


@pytest.fixture(scope="session")
def options(broker: EmbeddedBroker, layout: TopicLayout) -> GatewayOptions:
    """Return the options of a gateway in front of that coordinator."""
    return GatewayOptions(broker.client_config, layout, Address("127.0.0.1", 0))


@pytest.fixture(scope="session")
def gateway(coordinated: Coordinated) -> str:
    """Return the gateway's address, for `bootstrap.servers` of clients."""
    return coordinated.gateway


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Return a topic of PARTITIONS partitions."""
    name = f"orders-{uuid.uuid4()}"
    create_topic(broker.client_config, name, PARTITIONS, {})
    return name


@pytest.fixture
def group() -> str:
    """Return a group id that no other test uses."""
    return new_group()


@pytest.fixture
def wire(gateway: str) -> Iterator[Wire]:
    """Yield a connection to the gateway, to send requests by hand."""
    with Wire(gateway) as connection:
        yield connection


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    client = kafka_clients.admin(broker.client_config)
    yield client
    client.close()


@pytest.fixture(scope="session")
def rocketmq(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMqCluster]:
    """Yield a real RocketMQ cluster, which no test stops. Give topics and groups unique names."""
    with RocketMqCluster(services.rocketmq(), tmp_path_factory.mktemp("rocketmq")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_gateway_at(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """Yield a function that starts a gateway before a cluster, and returns the address of its name server.
    With --plain-rocketmq, that of the cluster's own.
    """
    with Children(tmp_path_factory.mktemp("gateways")) as children:

        def start(name: str, at: RocketMqAt, *arguments: str) -> str:
            if request.config.getoption("plain_rocketmq"):
                return at.name_server
            broker = request.getfixturevalue("broker").bootstrap_servers
            request.getfixturevalue("coordinated")
            command = ["rocketmq-gateway", "--json", "--bootstrap-servers", broker, "--prefix", PREFIX]
            command += ["--namesrv", at.name_server, "--listen", "127.0.0.1:0", *arguments]
            child = children.start(name, *command)
            return str(
                json.loads(child.wait_for_line(lambda line: '"gateway"' in line, START_TIMEOUT_S))["gateway"]
            )

        yield start


@pytest.fixture(scope="session")
def rocketmq_gateway(rocketmq: RocketMqCluster, rocketmq_gateway_at: Callable[..., str]) -> str:
    """Return the address of a gateway before that cluster."""
    return rocketmq_gateway_at("gateway", rocketmq.at)


@pytest.fixture(autouse=True)
def rocketmq_clients_stop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the RocketMQ clients that a test has started."""
    if "rocketmq" in request.fixturenames:
        with request.getfixturevalue("rocketmq").clients.stopping():
            yield
    else:
        yield
