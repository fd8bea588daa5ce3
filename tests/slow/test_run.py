"""`group-coordinator run` and `state` as a user runs them: the life of a data folder. Members are not
disturbed, and no request gets two different answers.
"""

import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka import KafkaProducer

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import StoredGroup, decode_group
from checkpoints.sealed_file import ExportFile
from checkpoints.state_stores import describe_damage
from cli import main
from clients.coordinator_client import CoordinatorClient
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import unpack
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, OffsetFetch
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import FolderError
from kafka_why.topic_reader import layout_on
from state.kafka.classic_group import ClassicGroup
from streaming.query.session import WORKER_DAEMON
from streaming.service.status import read_status
from tests.e2e.harness import (
    QUICK_JAVA,
    START_TIMEOUT_S,
    Member,
    create_topic,
    read_answers,
    settle,
    stable_member,
    wait_until,
)
from tests.e2e.listening import (
    LOOPBACK,
    OTHER_LOOPBACK,
    addresses_of_this_machine,
    connects,
    links_of,
    listening_at,
    port_of,
)
from tests.harness import form
from tests.harness.checkpoints import spark_of
from tests.harness.run_command import BROKER, SPARK, Run, children_running, descendants, hold, jvm_of, run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quick_java")]

PEM = Path(__file__).parents[1] / "data" / "gateway.pem"
GROUPS = [f"group-{n}" for n in range(4)]
SESSION_MS = 60_000


@pytest.mark.timeout(900)
def test_members_survive_a_kill_and_an_outage_longer_than_their_sessions(tmp_path: Path) -> None:
    """The first run is killed, and the next one waits for the end of its JVM. That one is ended by Ctrl-C."""
    data = tmp_path / "data"
    arguments = ("--json", "-c", "group.initial.rebalance.delay.ms=0", *form.arguments())
    arguments = (*arguments, "--data-dir", str(data), "--tick-interval-ms", "100")
    with ExitStack() as stack:
        first = stack.enter_context(run(tmp_path, *arguments, "--no-gateway"))
        ready = first.ready()
        check_ready(ready, data)
        check_nobody_else_can_connect(first.pid, ready)
        check_the_ui_ends_no_job(ready["ui"])
        check_second_is_refused(tmp_path, arguments, first.pid)
        client_config = ClientConfig(str(ready["broker"]))
        create_topic(client_config, "orders", 1, {})  # offsets of a topic that does not exist are removed
        with client_of(client_config, DEFAULT_PREFIX) as client:
            members = {group_id: stable_member(client, group_id, SESSION_MS) for group_id in GROUPS}
            commit(members, 41)
            # A replica answers before the query has committed.
            settle(client_config, layout_on(client_config, DEFAULT_PREFIX))
            check_backup(data, tmp_path / "backup")
            commit(members, 42)
        next_run = run(tmp_path, *arguments, *open_to_others(tmp_path))
        again = kill_and_start(first, lambda: stack.enter_context(next_run), data / "coordinator" / "lock")
        ports = {"page": "", "ui": "", "metrics": "", "gateway": ""}
        ready_again = again.ready()
        assert ready_again | ports == ready | ports
        # The killed JVM's temporary files are gone.
        assert len(list((data / "coordinator" / "tmp").glob("librocksdbjni*.so"))) == 1
        outage = Checkpoint.at(data / "coordinator").record().outages[-1].outage
        assert outage.until_ms >= listening_ms(again)
        with client_of(client_config, DEFAULT_PREFIX) as client:
            check_is_as_it_was(client, members)
            settle(client_config, layout_on(client_config, DEFAULT_PREFIX))
        assert requests_answered_differently(client_config) == []
        check_open_to_others(ready_again)
        check_topic_is_made_by_writing(ready_again["gateway"])
        check_interrupt(again)
    status = read_status(data / "coordinator" / "status.json")
    assert (status.phase, status.reason) == (ServicePhase.STOPPED, "stopped in order")

    check_checkpoint(Checkpoint.at(data / "coordinator"))


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
        "rocketmq": None,
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
    """Check that the UI and the metrics answer on loopback, and no process of it listens at any other
    address.
    """
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


def check_second_is_refused(tmp_path: Path, arguments: tuple[str, ...], pid: int) -> None:
    """Check that a second run is refused with the owner's name, before it starts anything."""
    with run(tmp_path, *arguments) as second:
        assert second.end() == (1, "")
        assert "starting a Kafka broker" not in second.stderr
        *_, last = second.stderr.splitlines()
        assert last.startswith("Error: ")
        assert f" is in use by the coordinator with process id {pid} on host {socket.gethostname()} " in last


def state(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["state", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def client_of(client_config: ClientConfig, prefix: str) -> CoordinatorClient:
    return CoordinatorClient(client_config, layout_on(client_config, prefix), client_id="test")


def commit(members: dict[str, Member], offset: int) -> None:
    for member in members.values():
        request = OffsetCommit(
            **member.client.header(member.group_id, 8),
            generation_id=1,
            member_id=member.member_id,
            topics=[CommittedTopic("orders", [CommittedPartition(0, offset)])],
        )
        assert member.client.send(request).result().error_code is ErrorCode.NONE


def check_backup(data: Path, backup: Path) -> None:
    """Check that a state that is read while the coordinator runs has what was committed."""
    said = state("backup", backup, "--data-dir", data)
    export = ExportFile(backup)
    assert f"wrote {export.line_count} groups" in said
    found: dict[str, int] = {}
    for one in export.groups():
        group = decode_group(one.group_id, StoredGroup(one.version, None, one.group))
        if isinstance(group, ClassicGroup):
            found[one.group_id] = group.offsets["orders"][0].offset
    assert found == dict.fromkeys(GROUPS, 41)


def kill_and_start(first: Run, start: Callable[[], Run], lock: Path) -> Run:
    """Kill a run whose JVM stands still: it cannot see that its coordinator is gone, and may be in a batch.
    When all sessions are over, start the next run, which waits for the end of that JVM.
    """
    jvm = jvm_of(first.pid)
    with descendants(first.pid) as left, hold(jvm):
        first.process.kill()
        wait_until(lambda: not left.has(BROKER), "the end of its broker")
        over_s = time.monotonic() + SESSION_MS / 1000
        wait_until(lambda: time.monotonic() > over_s, "the sessions' ends", 2 * SESSION_MS / 1000)
        again = start()
        check_waits(again, lock, first.pid)
        os.kill(jvm, signal.SIGCONT)
        wait_until(lambda: children_running(again.pid, SPARK) != [], "the start of Spark's JVM")
        assert not left.has(SPARK)
    return again


def check_waits(waiting: Run, lock: Path, holder: int) -> None:
    """Check that the run waits for the lock."""
    wait_until(lambda: str(lock) in links_of(waiting.pid), "its coming to the lock", START_TIMEOUT_S)
    for _ in range(20):  # it tries every 50 ms
        assert json.loads(lock.read_text())["pid"] == holder
        assert children_running(waiting.pid, SPARK) == []
        time.sleep(0.05)


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
    """Check that a client of the gateway names itself over TLS, and writes to a topic that is not there."""
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


def listening_ms(process: Run) -> float:
    """Return when its gateway began to listen, from its log, because a poll may be late."""
    entries = [json.loads(line) for line in process.stderr.splitlines() if line.startswith("{")]
    first = next(entry for entry in entries if entry["event"] == "listening")
    return datetime.fromisoformat(first["timestamp"]).timestamp() * 1000


def check_is_as_it_was(client: CoordinatorClient, members: dict[str, Member]) -> None:
    """Check that members have their ids and generations, and groups their offsets."""
    for group_id, member in members.items():
        assert Member(client, group_id, member.member_id).heartbeat(1) is ErrorCode.NONE
        fetch = OffsetFetch(**client.header(group_id, 7))
        (topic,) = client.send(fetch).result().topics
        assert [partition.committed_offset for partition in topic.partitions] == [42]


def requests_answered_differently(client_config: ClientConfig) -> list[str]:
    found: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(client_config, layout_on(client_config, DEFAULT_PREFIX)):
        for answer in unpack(record.value):
            found[json.loads(answer)["request"]].add(answer)
    assert len(found) > len(GROUPS)
    return [request for request, answers in found.items() if len(answers) > 1]


def check_interrupt(running: Run) -> None:
    """Check that Ctrl-C ends the run gracefully, and leaves no process."""
    with descendants(running.pid) as left:
        assert all(left.has(part) for part in (BROKER, SPARK, WORKER_DAEMON))
        assert any(BROKER in command and QUICK_JAVA not in command for command in left.running())
        running.interrupt()
        assert running.end() == (0, "")
        wait_until(lambda: left.running() == [], "the end of its processes")
    lines = running.stderr.splitlines()
    # The end has log lines too: of a connection that its client has just closed, of the replica.
    logged = map(json.loads, lines[lines.index("stopping") + 1 :])
    assert all(entry["level"] == "info" for entry in logged)
    assert "Traceback" not in running.stderr


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Check that what Spark left is sound; a byte that changes and a batch that is lost are noticed."""
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
