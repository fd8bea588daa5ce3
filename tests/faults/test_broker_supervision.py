"""The supervisor of the embedded broker: a broker that dies is started again, or given up."""

import os
import queue
import signal
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka.errors import KafkaError

from embedded.broker import EmbeddedBroker
from embedded.broker_supervision import SupervisedBroker
from tests.e2e.harness import child_pids, command_of, create_topic, wait_until

pytestmark = pytest.mark.e2e

WAIT_S = 60.0


def test_a_broker_that_dies_is_started_again_with_its_data_and_then_given_up(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    failures: queue.Queue[str] = queue.Queue()
    with SupervisedBroker(broker, failures.put, pauses_s=(0.1, 0.1, 0.1)) as supervised:
        servers = supervised.client_config
        create_topic(servers, "kept", 1, {})

        in_the_way = tmp_path / ".space"
        in_the_way.mkdir()  # nothing can be written there, as on a full disk
        kill(broker)
        wait_until(lambda: broker.pid is None, "the end of the broker")
        assert not any(is_zombie(child) for child in child_pids(os.getpid()))
        in_the_way.rmdir()
        wait_until(lambda: has_topic(str(servers), "kept"), "the broker on the same data and port")
        assert failures.empty()

        (tmp_path / "log" / "meta.properties").write_text("damaged")
        kill(broker)
        reason = failures.get(timeout=WAIT_S)
    assert reason.startswith("the embedded broker was started again 3 times and does not stay up: ")
    assert reason.endswith(f"(its log is {broker.log_path})")


def kill(broker: EmbeddedBroker) -> None:
    """As a crash would, which the broker's owner has to find out."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not command_of(pid)


def has_topic(servers: str, topic: str) -> bool:
    try:
        with closing(KafkaConsumer(bootstrap_servers=servers, bootstrap_timeout_ms=1_000)) as consumer:
            return topic in consumer.topics()
    except KafkaError:
        return False
