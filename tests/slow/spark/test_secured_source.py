"""Spark's Kafka source and sink at a broker with TLS and SASL: each way to log in, and what a plan shows."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from kafka_why.connections.client_config import ClientConfig
from streaming.query.pipeline import cluster_options, read_requests
from streaming.query.spark_settings import REDACTED_OPTIONS, REDACTED_TEXTS
from tests.e2e.harness import create_topic, new_layout
from tests.harness import secrets
from tests.harness.certificates import TokenEndpoint
from tests.harness.secured_broker import TOOLS, SecuredBroker

pytestmark = pytest.mark.e2e

SECRET = "k3y-0f-the-house"
TOPIC = "secured"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        create_topic(broker.client_config, TOPIC, 1, {})
        yield broker


@pytest.fixture(scope="module")
def configs(secured: SecuredBroker) -> Iterator[dict[str, ClientConfig]]:
    with TokenEndpoint(secured.security.issuer, {"alice": SECRET}) as endpoint:
        yield {
            "PLAIN": secured.config_of(TOOLS, "PLAIN"),
            "SCRAM-SHA-256": secured.config_of(TOOLS, "SCRAM-SHA-256"),
            "SCRAM-SHA-512": secured.config_of(TOOLS, "SCRAM-SHA-512"),
            "certificate": secured.config_by_certificate("alice"),
            "OAUTHBEARER": secured.config_by_token(endpoint.url, "alice", SECRET),
        }


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "certificate", "OAUTHBEARER"])
def test_spark_source_and_sink_authenticate(
    spark: SparkSession, configs: dict[str, ClientConfig], way: str
) -> None:
    options, value = cluster_options(configs[way]), str(uuid4())
    written = spark.createDataFrame([(value,)], "value string")
    written.write.format("kafka").options(**options).option("topic", TOPIC).save()
    read = spark.read.format("kafka").options(**options).option("subscribe", TOPIC).load()
    assert value in {row.value.decode() for row in read.select("value").collect()}


@pytest.mark.parametrize("way", ["SCRAM-SHA-512", "certificate", "OAUTHBEARER"])
def test_spark_plan_shows_no_secret(
    spark: SparkSession, configs: dict[str, ClientConfig], secured: SecuredBroker, way: str
) -> None:
    """The settings are hidden by their names and by their texts. A line of the authority's certificate shows
    that they are in the plan, because `spark.redaction.regex` alone does not hide it.
    """
    marker = secured.security.authority.certificate.read_text().splitlines()[1]
    hidden = [secured.security.users[TOOLS], SECRET, *key_lines(secured), marker]
    requests = read_requests(spark, configs[way], new_layout())
    shown = plan_of(requests)
    assert configs[way].bootstrap_servers.encode() in shown
    assert not secrets.found_in(shown, hidden)
    ours = {name: spark.conf.get(name) or "" for name in (REDACTED_OPTIONS, REDACTED_TEXTS)}
    try:
        for name in ours:
            spark.conf.set(name, "nothing-like-this")
        assert secrets.found_in(plan_of(requests), hidden) == [marker]
    finally:
        for name, value in ours.items():
            spark.conf.set(name, value)


def key_lines(secured: SecuredBroker) -> list[str]:
    """Return the lines of a private key, without its first and its last one."""
    return secured.security.certificate("alice").key.read_text().splitlines()[1:-1]


def plan_of(frame: object) -> bytes:
    """All plans of a query as Spark writes them into errors and into its UI."""
    to_text: Callable[[], str] = frame._jdf.queryExecution().toString  # type: ignore[attr-defined]
    return str(to_text()).encode()
