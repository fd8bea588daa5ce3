"""A coordinator and its gateway at a broker with TLS, SCRAM and ACLs: stories of clients, what each principal
may do, and that no secret is shown.

`pytest --secured tests/e2e/test_gateway_clients.py` and others plays whole suites on three such brokers.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli import main
from gateway.net.server import GatewayOptions
from gateway.service import serving
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import layout_on
from tests.e2e.gateway_clients import PARTITIONS, PythonMember, new_group, share
from tests.e2e.harness import create_topic, settle
from tests.e2e.test_gateway_clients import Told, tell
from tests.harness import secrets
from tests.harness.commands import invoke
from tests.harness.recommended_acls import recommended
from tests.harness.secured_broker import (
    COORDINATOR,
    GATEWAY,
    TOOLS,
    Allowed,
    ClusterSecurity,
    grant,
    write_properties,
)
from tests.harness.shared import PREFIX, Coordinated, Owner

pytestmark = pytest.mark.e2e

# Both libraries log in; what they do then is shown without security by both.
STORIES = (("commits", "kafka-python"), ("commits", "librdkafka"))
# What a gateway's clients do with brokers: the gateway of `run` and that of a process of its own.
OF_CLIENTS = [
    Allowed(user, "TOPIC", "orders-", "PREFIXED", ("DESCRIBE", "READ", "WRITE"))
    for user in (COORDINATOR, GATEWAY)
]


@dataclass(frozen=True)
class Secured:
    """The coordinator with its folder. `client_config` is the administrator's."""

    folder: Path
    security: ClusterSecurity
    client_config: ClientConfig
    layout: TopicLayout
    coordinated: Coordinated

    def config_of(self, user: str) -> ClientConfig:
        properties = self.security.client_properties(user, "SCRAM-SHA-512")
        return ClientConfig(self.client_config.bootstrap_servers, properties)

    def options_of(self, user: str, folder: Path) -> tuple[str, ...]:
        """Return the options with which a command logs in as this user."""
        path = folder / f"{user}.properties"
        write_properties(path, self.config_of(user).properties)
        servers = self.client_config.bootstrap_servers
        return ("--bootstrap-servers", servers, "--client-config", str(path), "--prefix", PREFIX)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "spark-events").mkdir()
    settings = {"enabled": "true", "compress": "false", "dir": str(folder / "spark-events")}
    logged = [f"--spark-conf=spark.eventLog.{name}={value}" for name, value in settings.items()]
    security = ClusterSecurity(tmp_path_factory.mktemp("security"), authorizes=True)
    owner = Owner(folder, security, logged, nodes=[1])
    try:
        client_config = owner.broker().handle().client_config
        grant(client_config, [*recommended(PREFIX), *OF_CLIENTS])
        coordinated = owner.coordinator()
        yield Secured(folder, security, client_config, layout_on(client_config, PREFIX), coordinated)
    finally:
        owner.close()


@pytest.fixture(scope="module")
def told(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    options = GatewayOptions(secured.client_config, secured.layout, Address("127.0.0.1", 0))
    gateway, logs = secured.coordinated.gateway, tmp_path_factory.mktemp("logs")
    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {
            (name, library): pool.submit(tell, name, library, options, gateway, logs)
            for name, library in STORIES
        }


@pytest.mark.parametrize(("story", "library"), STORIES)
def test_clients_complete_the_story_at_secured_brokers(told: Told, story: str, library: str) -> None:
    told[story, library].result()


def test_recommended_acls_suffice_for_gateway_and_tools(secured: Secured, tmp_path: Path) -> None:
    topic, group_id = f"orders-{uuid.uuid4()}", new_group()
    create_topic(secured.client_config, topic, PARTITIONS, {})
    options = GatewayOptions(secured.config_of(GATEWAY), secured.layout, Address("127.0.0.1", 0))
    tools = secured.options_of(TOOLS, tmp_path)
    with serving(options) as address, closing(PythonMember(str(address), group_id, topic)) as member:
        share(member)
        member.commit()
        settle(secured.client_config, secured.layout)
        assert group_id in output_of("groups", "list", *tools)
        assert topic in output_of("groups", "describe", "--group", group_id, *tools)
        assert group_id in output_of("why", group_id, *tools)
    output_of("groups", "delete", "--group", group_id, *tools)
    assert group_id not in output_of("groups", "list", *tools)


def output_of(*arguments: str) -> str:
    done = invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_user_without_acls_cannot_write_requests(secured: Secured) -> None:
    refused: list[str] = []
    producer = kafka_clients.request_producer(
        secured.config_of("alice"), timeout_ms=20_000, max_request_bytes=1_000_000
    )
    topic = secured.layout.requests_topic
    producer.produce(
        topic,
        b"value",
        partition=0,
        on_delivery=lambda error, _: refused.append(error.name() if error else ""),
    )
    producer.flush(20)
    assert refused == ["TOPIC_AUTHORIZATION_FAILED"]


def test_no_secret_is_shown_or_stored(secured: Secured) -> None:
    """No page of Spark's UI or REST API, no log, event log, checkpoint, status, command line, metric and
    record has the coordinator's password, in any of its forms.
    """
    ready, layout = secured.coordinated.ready, secured.layout
    own = (str(secured.folder / "brokers"), str(secured.folder / "client.properties"))
    looked_at = {
        "pages": [*secrets.pages(ready["ui"]), *secrets.page(ready["metrics"])],
        "files": [found for found in secrets.files(secured.folder) if not found[0].startswith(own)],
        "processes": list(secrets.command_lines(secured.coordinated.pid)),
        "topics": list(secrets.topic_records(secured.client_config, layout.topics)),
    }
    password = secured.security.users[COORDINATOR]
    for kind, places in looked_at.items():
        assert not [where for where, content in places if secrets.found_in(content, [password])], kind
    # The search reaches what it should: the prefix of the topics is found in each place.
    reached = {
        kind: [where for where, content in places if PREFIX.encode() in content]
        for kind, places in looked_at.items()
    }
    plans = [content for where, content in looked_at["pages"] if "/SQL/execution" in where]
    assert [content for content in plans if b"kafka" in content.lower()]
    assert [where for where in reached["files"] if "spark-events" in where]
    assert reached["processes"]
    assert layout.events_topic in " ".join(reached["topics"])
