"""`why --follow` at a cluster's own coordinator, from its log and by polls, and what commands ask brokers."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from cli import main
from embedded.broker import EmbeddedBroker, free_ports
from embedded.java import HOST
from kafka_why.connections.client_config import ClientConfig
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, share
from tests.e2e.harness import create_topic, wait_until
from tests.harness.commands import invoke
from tests.harness.followed import follow
from tests.harness.recording_proxy import RecordingProxy

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

TOPIC = "orders"
READS = {
    "ApiVersions",
    "ConsumerGroupDescribe",
    "DescribeCluster",
    "DescribeGroups",
    "Fetch",
    "FindCoordinator",
    "ListGroups",
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "ShareGroupDescribe",
    "StreamsGroupDescribe",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RecordingProxy]]:
    """Yield a broker's address for members, and a proxy for all that the commands ask."""
    ports, recorded = free_ports(), free_ports().client
    with RecordingProxy(recorded) as proxy:
        overrides = {
            "listeners": f"CLIENT://{HOST}:{ports.client},RECORDED://{HOST}:{recorded},"
            f"CONTROLLER://{HOST}:{ports.controller}",
            "advertised.listeners": f"CLIENT://{HOST}:{ports.client},RECORDED://{proxy.address}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,RECORDED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            # So a group's first rebalance lasts long enough to be seen.
            "group.initial.rebalance.delay.ms": "2000",
        }
        folder = tmp_path_factory.mktemp("broker")
        with EmbeddedBroker(folder, ports=ports, overrides=overrides) as broker:
            create_topic(ClientConfig(broker.bootstrap_servers), TOPIC, PARTITIONS, {})
            yield broker.bootstrap_servers, proxy


def member(servers: str, group: str, *, epochs: bool) -> ConfluentMember:
    return ConfluentMember(servers, group, TOPIC, is_of_consumer_protocol=epochs)


@pytest.mark.parametrize(("source", "epochs"), [("offsets", False), ("polling", True)])
def test_rebalances_are_explained_as_they_happen(
    cluster: tuple[str, RecordingProxy], source: str, *, epochs: bool
) -> None:
    servers, proxy = cluster
    group = new_group()
    with closing(member(servers, group, epochs=epochs)) as first:
        share(first)
        with follow(group, "--bootstrap-servers", proxy.address, "--source", source) as followed:
            wait_until(lambda: len(followed.of("report")) == 1, "the report")
            with closing(member(servers, group, epochs=epochs)) as second:
                share(first, second)
                wait_until(lambda: len(followed.of("rebalance")) == 1, "the rebalance of the second member")
            wait_until(lambda: len(followed.of("rebalance")) == 2, "the rebalance without it")
    (report,) = followed.of("report")
    assert (report["state"], len(report["members"])) == ("Stable", 1)
    joined, gone = followed.of("rebalance")
    assert [one["cause"]["kind"] for one in (joined, gone)] == ["member joined", "member left or expired"]
    assert [one["moves"]["moved"] for one in (joined, gone)] == [PARTITIONS // 2] * 2
    assert followed.of("entry")[-1]["to_state"] == "Stable"
    assert {"Metadata", "ApiVersions"} <= proxy.apis <= READS


def test_commands_send_only_requests_that_read(cluster: tuple[str, RecordingProxy]) -> None:
    servers, proxy = cluster
    group = new_group()
    with closing(member(servers, group, epochs=False)) as alone:
        share(alone)
        for command in (
            ["why", group],
            ["groups", "list", "--state"],
            ["groups", "describe", group, "--lag-seconds"],
        ):
            done = invoke(main, [*command, "--bootstrap-servers", proxy.address])
            assert done.exit_code == 0, done.output
    assert {"Fetch", "ListGroups", "ListOffsets"} <= proxy.apis <= READS
