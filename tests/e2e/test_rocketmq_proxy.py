"""gRPC clients of a RocketMQ Proxy whose name server is the gateway."""

from pathlib import Path

import pytest

from cli import main
from embedded.broker import EmbeddedBroker
from tests.harness.commands import invoke
from tests.harness.rocketmq_clients import RocketMqCluster, new_group
from tests.harness.rocketmq_front import GrpcClients, rocketmq_proxy
from tests.harness.shared import PREFIX
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 120.0


@pytest.mark.usefixtures("layout")
def test_grpc_clients_are_served_and_only_the_proxy_has_their_group(
    rocketmq: RocketMqCluster, rocketmq_gateway: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    bodies = [str(number) for number in range(30)]
    with (
        rocketmq_proxy(rocketmq_gateway, tmp_path) as proxy,
        GrpcClients(proxy, topic, group, tmp_path) as clients,
    ):
        wait_until(lambda: clients.is_ready, "the gRPC clients", PATIENCE_S)
        for body in bodies:
            clients.command(body)
        wait_until(lambda: {*clients.received} >= {*bodies}, "all messages", PATIENCE_S)
        assert {*clients.received} == {*bodies}

        def groups() -> set[str]:
            command = ["groups", "list", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
            return {*invoke(main, command).stdout.split()}

        wait_until(lambda: "CID_DefaultHeartBeatSyncerTopic" in groups(), "the Proxy's own group", PATIENCE_S)
        assert group not in groups()
