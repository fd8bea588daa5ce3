"""The embedded RocketMQ: real servers that clients can use, that keep their data, and never outlive us."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from embedded.java import HOST
from embedded.rocketmq import BrokerNode, EmbeddedRocketMq, RocketMqFailed
from tests.harness.rocketmq_cluster import RocketMqAt, RocketMqCluster, address_of, new_group
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PARENT = """
import signal, sys
from pathlib import Path
from embedded.rocketmq import EmbeddedRocketMq
cluster = EmbeddedRocketMq(Path(sys.argv[1]))
cluster.start()
print(*(server.pid for server in cluster.servers), flush=True)
signal.pause()
"""


def test_next_cluster_takes_over_messages_and_ports_of_an_orphaned_one(tmp_path: Path) -> None:
    """The first replaces a remembered port that is taken."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with ExitStack() as stack:
        with socket.create_server((HOST, 0)) as taken:
            (data / "ports.json").write_text(json.dumps({"name-server": taken.getsockname()[1]}))
            command = [sys.executable, "-W", "ignore", "-c", PARENT, str(data)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
                assert parent.stdout is not None
                ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
                ports = json.loads((data / "ports.json").read_text())
                name_server = f"{HOST}:{ports['name-server']}"
                at = RocketMqAt(name_server, {"broker-a/0": f"{HOST}:{ports['broker-a/0']}"})
                clients = stack.enter_context(RocketMqCluster(at, tmp_path / "clients"))
                topic = clients.create_topic()
                clients.clients.producer().send(topic, ["kept"])
                parent.send_signal(signal.SIGKILL)
        # At once, while the first is still ending: the folder passes from one to the other.
        with EmbeddedRocketMq(data) as next_one:
            assert select.select(ends, [], [], 0)[0] == ends
            assert address_of(next_one) == at
            consumer = clients.clients.push(new_group(), topic)
            wait_until(lambda: consumer.bodies == ["kept"], "the message")
        for end in ends:
            os.close(end)


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    cluster = EmbeddedRocketMq(tmp_path, nodes=[BrokerNode(id=1, overrides={"brokerId": "0"})])
    with pytest.raises(
        RocketMqFailed, match=r"(?s)broker-a/1 did not start: .*server\.log:.*Slave's brokerId"
    ):
        cluster.start()
    assert [server.pid for server in cluster.servers] == [None, None]
