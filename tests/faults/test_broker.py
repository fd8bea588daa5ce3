"""The embedded broker: a real Kafka that clients can use, that keeps its data, and that never outlives us.

The one of `run` is started again when it ends.
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

from embedded import broker_supervision
from embedded.broker import BrokerFailed, EmbeddedBroker, Ports
from embedded.broker_supervision import SupervisedBroker
from embedded.jars import broker_archive
from embedded.java import HOST
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


def test_next_broker_takes_over_from_an_orphaned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_taken_port_is_reported(tmp_path: Path) -> None:
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


def test_dead_broker_is_restarted_once_there_is_space_until_it_does_not_stay_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check of the space writes to a full device. It removes the link to that."""
    monkeypatch.setattr(broker_supervision, "PAUSES_S", (0.1, 0.1))
    monkeypatch.setattr("kafka_why.local_files._PROBE", "probe")
    broker, failures = EmbeddedBroker(tmp_path), list[str]()
    with capture_logs() as logs, SupervisedBroker(broker, failures.append) as supervised:
        servers = supervised.bootstrap_servers
        create_topic(servers, "kept")
        (tmp_path / "probe").symlink_to("/dev/full")
        kill(broker)
        wait_until(lambda: "the embedded broker runs again" in [it["event"] for it in logs], "another broker")
        (waits,) = [it for it in logs if it["event"] == "the embedded broker waits for space"]
        assert "No space left on device" in waits["reason"]
        assert supervised.bootstrap_servers == servers
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
