"""The embedded broker and RocketMQ: real servers that keep their data and never outlive their parent. `run`
restarts its servers when they end.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from structlog.testing import capture_logs

from cli.run_gateway import ClusterToServe
from embedded import supervision
from embedded.broker import BrokerFailed, EmbeddedBroker, Ports
from embedded.jars import broker_archive
from embedded.java import HOST, QUICK_COMPILER
from embedded.rocketmq import BrokerNode, EmbeddedRocketMq, RocketMqFailed
from embedded.supervision import ServerSupervisor
from tests.e2e.harness import child_pids, command_of
from tests.harness.rocketmq_clients import RocketMqAt, RocketMqCluster, new_group
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.e2e

RECORDS = [b"one", b"two", b"three"]


def create_topic(servers: str, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    finally:
        admin.close()


def produce(servers: str, topic: str, values: list[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    try:
        for future in [producer.send(topic, value) for value in values]:
            future.get(timeout=30)
    finally:
        producer.close()


def consume(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=f"reader-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
    )
    try:
        return [record.value for record in islice(consumer, count)]
    finally:
        consumer.close()


PARENT = """
import signal, sys
from itertools import islice
from pathlib import Path
from embedded.broker import EmbeddedBroker
broker = EmbeddedBroker(Path(sys.argv[1]))
broker.start()
print(broker.pid, broker.bootstrap_servers, flush=True)
signal.pause()
"""


def test_new_broker_takes_over_from_an_orphaned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first replaces a remembered port that is taken, maps the archive of its classes, which `make setup`
    makes, and has its folder for itself.
    """
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "ports.json").write_text(f'{{"client": {port}, "controller": {port}}}')
        command = [sys.executable, "-W", "ignore", "-c", PARENT, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as parent, ExitStack() as stack:
            stack.callback(parent.kill)
            assert parent.stdout is not None
            pid, servers = parent.stdout.readline().decode().split()
            remembered = Ports(**json.loads((tmp_path / "ports.json").read_text()))
            assert port not in remembered
            # A JVM that finds it unfit starts without it, and slower.
            assert str(broker_archive().resolve()) in Path(f"/proc/{pid}/maps").read_text()
            monkeypatch.setattr("embedded.broker.LOCK_TIMEOUT_S", 0.1)
            with pytest.raises(BrokerFailed, match=f"another one uses {tmp_path}"):
                EmbeddedBroker(tmp_path).start()
            create_topic(servers, "kept")
            produce(servers, "kept", RECORDS)
            broker_end = os.pidfd_open(int(pid))
    # A JVM may take long to end on a busy machine.
    monkeypatch.setattr("embedded.broker.LOCK_TIMEOUT_S", 60)
    try:
        # At once, while the first may still be ending: the folder and the ports pass from one to the other.
        with EmbeddedBroker(tmp_path) as broker:
            assert broker.ports == remembered
            assert is_over(broker_end)
            assert consume(broker.bootstrap_servers, "kept", len(RECORDS)) == RECORDS
    finally:
        os.close(broker_end)


def is_over(pid_fd: int) -> bool:
    """Return True if the process has ended: Linux makes its pidfd readable then."""
    return select.select([pid_fd], [], [], 0)[0] == [pid_fd]


def test_embedded_broker_reports_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerFailed, match=f"port {port} on {HOST} is taken"):
            EmbeddedBroker(tmp_path, ports=Ports(client=port, controller=1)).start()


def test_data_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    in_the_way = tmp_path / "data"
    in_the_way.write_text("a file")
    with pytest.raises(BrokerFailed, match=f"cannot use the folder {in_the_way}"):
        EmbeddedBroker(in_the_way).start()


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, overrides={"num.io.threads": "none"})
    with pytest.raises(BrokerFailed, match=r"(?s)The end of .*broker\.log:.*num\.io\.threads"):
        broker.start()
    assert broker.pid is None


def test_dead_broker_restarts_once_the_disk_has_space_unless_it_keeps_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check of the space writes to a full device. It removes the link to that."""
    monkeypatch.setattr(supervision, "PAUSES_S", (0.1, 0.1))
    monkeypatch.setattr("kafka_why.local_files._PROBE", "probe")
    broker, failures = EmbeddedBroker(tmp_path), list[str]()
    supervisor = ServerSupervisor(broker, "the embedded broker", failures.append)
    with capture_logs() as logs, broker, supervisor:
        servers = broker.bootstrap_servers
        create_topic(servers, "kept")
        (tmp_path / "probe").symlink_to("/dev/full")
        kill(broker)
        wait_until(lambda: "the embedded broker runs again" in [it["event"] for it in logs], "another broker")
        (waits,) = [it for it in logs if it["event"] == "the embedded broker waits for space"]
        assert "No space left on device" in waits["reason"]
        assert broker.bootstrap_servers == servers
        produce(servers, "kept", RECORDS)
        (tmp_path / "log" / "meta.properties").write_text("damaged")
        kill(broker)
        wait_until(lambda: failures != [], "the broker is given up")
    (failure,) = failures
    assert failure.startswith("the embedded broker was started again 2 times and does not stay up: ")
    assert failure.endswith(f" (its log is {broker.log_path})")


def kill(broker: EmbeddedBroker) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)


ROCKETMQ_PARENT = """
import signal, sys
from pathlib import Path
from embedded.rocketmq import EmbeddedRocketMq
cluster = EmbeddedRocketMq(Path(sys.argv[1]))
cluster.start()
print(*(server.pid for server in cluster.servers), flush=True)
signal.pause()
"""


@pytest.mark.one_form
@pytest.mark.timeout(600)
def test_embedded_rocketmq_keeps_messages_and_ports_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one replaces a remembered port that is taken. The second one is that of `run`. Its name
    server is given up when it keeps failing.
    """
    monkeypatch.setattr(supervision, "PAUSES_S", (0.1, 0.1))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_COMPILER)
    data, failures = tmp_path / "rocketmq", list[str]()
    data.mkdir(mode=0o700)
    with ExitStack() as stack:
        with socket.create_server((HOST, 0)) as taken:
            (data / "ports.json").write_text(json.dumps({"name-server": taken.getsockname()[1]}))
            command = [sys.executable, "-W", "ignore", "-c", ROCKETMQ_PARENT, str(data)]
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
        with capture_logs() as logs, ClusterToServe().started(tmp_path, failures.append) as (next_one,):
            assert select.select(ends, [], [], 0)[0] == ends
            assert next_one == name_server
            admin = clients.clients.producer()
            assert admin.brokers_of(topic) == at.brokers
            assert first_message(clients, topic) == "kept"
            names = ["name-server", "broker-a/0"]
            for server in rocketmq_servers():
                os.kill(server, signal.SIGKILL)
            again = {f"the embedded RocketMQ {name} runs again" for name in names}
            wait_until(lambda: again <= {it["event"] for it in logs}, "both servers")
            wait_until(lambda: admin.brokers_of(topic) == at.brokers, "the route")
            assert first_message(clients, topic) == "kept"
            (data / "name-server" / "logback.xml").unlink()
            (data / "name-server" / "logback.xml").mkdir()
            os.kill(rocketmq_servers()[0], signal.SIGKILL)
            wait_until(lambda: failures != [], "the name server is given up")
        for end in ends:
            os.close(end)
    (failure,) = failures
    assert failure.startswith("the embedded RocketMQ name-server was started again 2 times and does not stay")


def rocketmq_servers() -> list[int]:
    """Return the process ids of this process's embedded servers of RocketMQ, the name server first."""
    watched = [pid for watchdog in child_pids(os.getpid()) for pid in child_pids(watchdog)]
    mains = ("NamesrvStartup", "BrokerStartup")
    return [pid for main in mains for pid in watched if main in command_of(pid)]


def first_message(clients: RocketMqCluster, topic: str) -> str:
    """Return what a new group receives first."""
    consumer = clients.clients.push(new_group(), topic)
    wait_until(lambda: consumer.bodies != [], "a message")
    return consumer.bodies[0]


@pytest.mark.one_form
def test_failed_rocketmq_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    cluster = EmbeddedRocketMq(tmp_path, nodes=[BrokerNode(id=1, overrides={"brokerId": "0"})])
    with pytest.raises(
        RocketMqFailed, match=r"(?s)broker-a/1 did not start: .*server\.log:.*Slave's brokerId"
    ):
        cluster.start()
    assert [server.pid for server in cluster.servers] == [None, None]
