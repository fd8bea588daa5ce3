"""`group-coordinator run` as a user runs it: a process of its own, ended by Ctrl-C or worse."""

import json
import os
import re
import signal
import socket
import time
import urllib.request
import uuid
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from checkpoints.checkpoint import Checkpoint
from checkpoints.damage import describe_damage
from checkpoints.files import FolderError
from embedded.broker import EmbeddedBroker
from records.layout import DEFAULT_PREFIX
from streaming.service.status import Phase, read_status
from tests.e2e.harness import QUICK_JAVA, START_TIMEOUT_S, wait_until
from tests.e2e.listening import (
    LOOPBACK,
    OTHER_LOOPBACK,
    addresses_of_this_machine,
    connects,
    listening_at,
    port_of,
)
from tests.harness.checkpoints import spark_of
from tests.harness.run_command import BROKER, SPARK, Run, children_running, descendants, hold, jvm_of, run

pytestmark = pytest.mark.e2e

PEM = Path(__file__).parents[1] / "data" / "gateway.pem"


@pytest.mark.timeout(600)
def test_killed_and_started_again_then_interrupted(tmp_path: Path) -> None:
    """The life of a data folder: one run is killed, a second is refused, a third takes over and is ended."""
    data_dir = tmp_path / "data"
    arguments = ("--json", "--data-dir", str(data_dir), "--tick-interval-ms", "100")
    with run(tmp_path, *arguments, "--no-gateway") as first:
        ready = first.ready()
        check_ready(ready, data_dir)
        check_nobody_else_can_connect(first.pid, ready)
        check_the_ui_ends_no_job(ready["ui"])
        check_second_is_refused(tmp_path, arguments, first.pid)
        jvm = jvm_of(first.pid)
        with descendants(first.pid) as left, hold(jvm):
            first.process.kill()
            # The JVM cannot see that its coordinator is gone, and may be in a batch.
            wait_until(lambda: not left.has(BROKER), "the end of its broker")
            with run(tmp_path, *arguments, *open_to_others(tmp_path)) as third:
                check_waits(third, data_dir / "coordinator" / "lock", first.pid)
                os.kill(jvm, signal.SIGCONT)
                again = third.ready()
                assert not left.has(SPARK)
                ports = {"page": "", "ui": "", "metrics": "", "gateway": ""}
                assert again | ports == ready | ports
                # The killed JVM's temporary files are gone.
                assert len(list((data_dir / "coordinator" / "tmp").glob("librocksdbjni*.so"))) == 1
                check_open_to_others(again)
                check_topic_is_made_by_writing(again["gateway"])
                check_interrupt(third)
    status = read_status(data_dir / "coordinator" / "status.json")
    assert (status.phase, status.reason) == (Phase.STOPPED, "stopped in order")
    check_checkpoint(Checkpoint.at(data_dir / "coordinator"))


def check_ready(ready: dict[str, Any], data_dir: Path) -> None:
    ui, metrics, broker, page = ready["ui"], ready["metrics"], ready["broker"], ready["page"]
    assert ui.startswith("http://127.0.0.1:")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", page)
    wait_until(lambda: b"No group yet." in body_of(page), "the page")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", metrics)
    assert broker.startswith("127.0.0.1:")
    assert ready == {
        "broker": broker,
        "gateway": None,
        "requests_topic": f"{DEFAULT_PREFIX}-requests",
        "responses_topic": f"{DEFAULT_PREFIX}-responses",
        "groups_topic": f"{DEFAULT_PREFIX}-groups",
        "events_topic": f"{DEFAULT_PREFIX}-events",
        "page": page,
        "ui": ui,
        "metrics": metrics,
        "data_dir": str(data_dir),
    }


def body_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        found: bytes = response.read()
    return found


def check_nobody_else_can_connect(pid: int, ready: dict[str, Any]) -> None:
    """The UI and the metrics answer on loopback, and no process of it listens at any other address."""
    for url in (ready["page"], ready["ui"], ready["metrics"]):
        assert [host for host in addresses_of_this_machine() if connects(host, port_of(url))] == [LOOPBACK]
    with descendants(pid) as processes:
        assert {address.host for address in listening_at([pid, *processes.handles])} == {LOOPBACK}


def check_the_ui_ends_no_job(ui: str) -> None:
    (application,) = fetched(f"{ui}/api/v1/applications")
    environment = fetched(f"{ui}/api/v1/applications/{application['id']}/environment")
    assert ["spark.ui.killEnabled", "false"] in environment["sparkProperties"]


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def open_to_others(tmp_path: Path) -> tuple[str, ...]:
    """UI and metrics at another address, a gateway with TLS and SASL, a broker that makes topics."""
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    return (
        *("--ui-host", OTHER_LOOPBACK, "--metrics-host", OTHER_LOOPBACK),
        *("--tls-certificate", str(PEM), "--sasl-users", str(users), "--advertised-host", "localhost"),
        *("--broker-config", "auto.create.topics.enable=true", "--broker-config", "num.partitions=3"),
    )


def check_open_to_others(ready: dict[str, Any]) -> None:
    for url in (ready["ui"], ready["metrics"]):
        assert url.startswith(f"http://{OTHER_LOOPBACK}:")
        assert connects(OTHER_LOOPBACK, port_of(url))
        assert not connects(LOOPBACK, port_of(url))


def check_topic_is_made_by_writing(gateway: str) -> None:
    """A client of the gateway names itself over TLS, and writes to a topic that is not there."""
    assert gateway.startswith("localhost:")
    producer = KafkaProducer(
        bootstrap_servers=gateway,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        ssl_cafile=str(PEM),
        ssl_check_hostname=False,  # it is for 127.0.0.1
        sasl_plain_username="ann",
        sasl_plain_password="secret",
    )
    with closing(producer):
        assert producer.send("made-by-writing", b"value").get(timeout=30).offset == 0
        assert producer.partitions_for("made-by-writing") == {0, 1, 2}


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """What Spark left is sound; a byte that changes and a batch that is lost are noticed."""
    assert describe_damage(checkpoint.files) == []
    changelog = newest(spark_of(checkpoint) / "state" / "0" / "0", ".changelog")
    content = changelog.read_bytes()
    changelog.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert describe_damage(checkpoint.files) == [f"{changelog} does not match its checksum"]
    topic = f"{DEFAULT_PREFIX}-requests"
    checkpoint.check_committed(topic)
    committed = checkpoint.record().committed
    assert committed is not None
    while int((batch := newest(spark_of(checkpoint) / "offsets")).name) >= committed.batch:
        batch.unlink()
    with pytest.raises(FolderError, match="would be handled a second time"):
        checkpoint.check_committed(topic)


def newest(folder: Path, suffix: str = "") -> Path:
    return max(folder.glob(f"[0-9]*{suffix}"), key=lambda path: int(path.stem))


def check_second_is_refused(tmp_path: Path, arguments: tuple[str, ...], pid: int) -> None:
    """By the owner's name, and before it starts anything."""
    with run(tmp_path, *arguments) as second:
        assert second.end() == (1, "")
        assert "starting a Kafka broker" not in second.stderr
        *_, last = second.stderr.splitlines()
        assert last.startswith("Error: ")
        assert f" is in use by the coordinator with process id {pid} on host {socket.gethostname()} " in last


def check_waits(waiting: Run, lock: Path, holder: int) -> None:
    """It has come to the lock, and has not got it."""
    wait_until(lambda: str(lock) in open_files(waiting.pid), "its coming to the lock", START_TIMEOUT_S)
    for _ in range(20):  # it tries every 50 ms
        assert json.loads(lock.read_text())["pid"] == holder
        assert children_running(waiting.pid, SPARK) == []
        time.sleep(0.05)


def open_files(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            found.append(str(link.readlink()))
    return found


def check_interrupt(running: Run) -> None:
    """Ctrl-C ends it in order, and nothing of it stays."""
    with descendants(running.pid) as left:
        assert all(left.has(part) for part in (BROKER, SPARK, "pyspark.daemon"))
        assert any(BROKER in command and QUICK_JAVA not in command for command in left.running())
        running.interrupt()
        assert running.end() == (0, "")
        wait_until(lambda: left.running() == [], "the end of its processes")
    lines = running.stderr.splitlines()
    # The end has log lines too: of a connection that its client has just closed, of the replica.
    logged = map(json.loads, lines[lines.index("stopping") + 1 :])
    assert all(entry["level"] == "info" for entry in logged)
    assert "Traceback" not in running.stderr


def test_interrupt_while_starting_ends_it_at_once(broker: EmbeddedBroker, tmp_path: Path) -> None:
    servers = ("--bootstrap-servers", broker.bootstrap_servers, "--prefix", f"test-{uuid.uuid4()}")
    with run(tmp_path, "--json", "--data-dir", str(tmp_path / "data"), *servers) as starting:
        wait_until(lambda: children_running(starting.pid, SPARK) != [], "the start of Spark's JVM")
        with descendants(starting.pid) as left:
            starting.interrupt()
            assert starting.end() == (128 + signal.SIGINT, "")
            wait_until(lambda: left.running() == [], "the end of its processes")
        assert "Traceback" not in starting.stderr


def test_brokers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    with run(tmp_path, "--data-dir", str(tmp_path / "data"), "--bootstrap-servers", "127.0.0.1:1") as alone:
        assert alone.end() == (1, "")
        *_, last = alone.stderr.splitlines()
        assert last.startswith("Error: no Kafka broker answers (127.0.0.1:1: Connection refused)")
