"""Long-running commands as processes: a failed start ends with a sentence, and no process is left behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey

import cli
from cli import main
from cli.processes.child import ChildFailed, Children, family
from embedded.broker import EmbeddedBroker
from gateway.upstream.connections import Address
from kafka_why.contract.layout import TopicLayout
from streaming.service.topics import prepare_topics
from tests.e2e.harness import child_pids, command_of, new_layout, running, wait_until
from tests.e2e.listening import links_of
from tests.harness.commands import invoke
from tests.harness.ports import gateway_port
from tests.harness.raw_client import RawClient, connected
from tests.harness.shared import PREFIX, Coordinated

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

COMMAND = [sys.executable, "-c", "from cli import main; main()"]
END_TIMEOUT_S = 90.0
# Less than kafka-python waits for a broker that does not answer, and enough for a busy machine.
SIGNAL_TIMEOUT_S = 25.0
NOT_OF_THIS_MACHINE = "192.0.2.1"  # for documentation (RFC 5737)


def failure(*arguments: str) -> str:
    """Return the last line of a command that fails."""
    outcome = invoke(main, arguments)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    return outcome.stderr.splitlines()[-1]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str], timeout_s: float = END_TIMEOUT_S) -> tuple[int, str]:
    """Wait until the command ends by itself. Return its exit code and its output."""
    with process:
        try:
            _, stderr = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, stderr.strip()


@pytest.fixture(scope="module")
def layout(broker: EmbeddedBroker) -> TopicLayout:
    """Return the topics of a coordinator that does not run."""
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    return layout


@pytest.fixture
def prefix(layout: TopicLayout) -> str:
    return layout.requests_topic.removesuffix("-requests")


def test_unusable_listen_address_ends_the_gateways_start(broker: EmbeddedBroker, prefix: str) -> None:
    at = ("--listen", f"{NOT_OF_THIS_MACHINE}:0", "--bootstrap-servers", broker.bootstrap_servers)
    assert failure("gateway", *at, "--prefix", prefix).startswith(
        f"Error: cannot listen at {NOT_OF_THIS_MACHINE}:0: "
    )


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Yield a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(END_TIMEOUT_S)
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_gateways_start(silent: socket.socket, number: signal.Signals) -> None:
    process = started("gateway", "--bootstrap-servers", f"127.0.0.1:{silent.getsockname()[1]}")
    connection, _ = silent.accept()  # it waits for an answer now
    with connection:
        process.send_signal(number)
        assert ended(process, SIGNAL_TIMEOUT_S) == (128 + number, "")


def test_missing_topics_end_the_gateways_start(broker: EmbeddedBroker) -> None:
    prefix = f"test-{uuid.uuid4()}"
    said = failure("gateway", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix)
    assert said.startswith(f"Error: no topic {prefix}-requests on {broker.client_config}: ")


def test_run_fails_to_start_with_a_ui_address_of_another_machine(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    cluster = ("--bootstrap-servers", broker.bootstrap_servers, "--prefix", f"test-{uuid.uuid4()}")
    at = ("--data-dir", str(tmp_path), "--ui-host", NOT_OF_THIS_MACHINE)
    exit_code, said = ended(started("run", "--json", *cluster, *at))
    assert exit_code == 1
    why = f"Error: the Spark UI cannot listen at {NOT_OF_THIS_MACHINE}: Cannot assign "
    assert said.splitlines()[-1].startswith(why)


@click.command()
def raises() -> None:
    """A command that raises an unexpected error."""
    raise KeyError("unforeseen")


def test_unexpected_start_failure_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "raises", f"{__name__}:raises")
    assert failure("raises") == "Error: unexpected KeyError: 'unforeseen'"


GATEWAY_COMMAND = [sys.executable, "-c", "from cli import main; main()", "gateway"]
HOST = "127.0.0.1"
PROCESSES, CONNECTIONS = 2, 40
GATEWAY_END_TIMEOUT_S = 30.0
HEARTBEAT, COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID = 12, 15, 25


class Serving(NamedTuple):
    """A gateway of several processes, their ids, and the address of their metrics."""

    parent: subprocess.Popen[str]
    address: Address
    pids: list[int]
    metrics: str

    def ended(self) -> tuple[int, str]:
        """Return the exit code, and the last line of standard error, when it ends."""
        _, stderr = self.parent.communicate(timeout=GATEWAY_END_TIMEOUT_S)
        return self.parent.returncode, (stderr.strip().splitlines() or [""])[-1]


@pytest.fixture
def serving(broker: EmbeddedBroker, coordinated: Coordinated) -> Iterator[Serving]:
    port = gateway_port(above=3)
    at = ["--listen", f"{HOST}:{port}", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    with subprocess.Popen(
        [*GATEWAY_COMMAND, *at, "--processes", str(PROCESSES), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            ready = json.loads(parent.stdout.readline())
            pids = [pid for pid in child_pids(parent.pid) if "spawn_main" in command_of(pid)]
            assert len(pids) == PROCESSES
            yield Serving(parent, Address.parse(ready["gateway"]), pids, ready["metrics"])
        finally:
            parent.kill()


def connections_of(pid: int, port: int) -> int:
    inodes = {
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "01" and int(fields[1].rpartition(":")[2], 16) == port
    }
    return sum(link.removeprefix("socket:[").removesuffix("]") in inodes for link in links_of(pid))


async def heartbeats(address: Address, pids: list[int]) -> list[int]:
    """Send a heartbeat over each of some connections, which the processes share. Return the errors."""
    clients = [
        RawClient(*await asyncio.open_connection(address.host, address.port)) for _ in range(CONNECTIONS)
    ]
    beat = {"group_id": "no-such-group", "generation_id": 1, "member_id": "nobody"}

    async def error_of(client: RawClient) -> int:
        """Repeat the request if the coordinator was paused."""
        error = COORDINATOR_NOT_AVAILABLE
        while error == COORDINATOR_NOT_AVAILABLE:
            error = (await client.ask(HEARTBEAT, 4, **beat)).error_code
        return error

    errors = await asyncio.gather(*map(error_of, clients))
    shares = [connections_of(pid, address.port) for pid in pids]
    assert sum(shares) == CONNECTIONS
    assert all(shares), shares
    for client in clients:
        client.writer.close()
    return errors


async def broker_of(address: Address) -> Address:
    """Return the address of the only broker's listener."""
    async with connected(address) as client:
        (broker,) = (await client.ask(ApiKey.Metadata, 12, topics=[])).brokers
        return Address(broker.host, broker.port)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
    return text


def heartbeats_counted(metrics: str) -> float:
    """Return the sum of heartbeats that all processes have answered, or 0 before the first one."""
    counted = 'group_coordinator_gateway_request_duration_seconds_count{api="Heartbeat"}'
    lines = [line for line in get(metrics).splitlines() if line.startswith(counted)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_gateway_processes_share_ports_metrics_and_health(serving: Serving) -> None:
    for address in (serving.address, asyncio.run(broker_of(serving.address))):
        assert asyncio.run(heartbeats(address, serving.pids)) == [UNKNOWN_MEMBER_ID] * CONNECTIONS
    # A process that answers late on a busy machine is left out until the next look.
    wait_until(lambda: heartbeats_counted(serving.metrics) >= 2 * CONNECTIONS, "the heartbeats of both")
    for path in ("healthz", "readyz"):
        get(serving.metrics.replace("metrics", path))
    serving.parent.send_signal(signal.SIGTERM)
    exit_code, _ = serving.ended()
    assert exit_code == 0
    assert not running(serving.pids)


def test_a_process_that_dies_ends_the_gateway(serving: Serving) -> None:
    os.kill(serving.pids[0], signal.SIGKILL)
    exit_code, last = serving.ended()
    assert (exit_code, last) == (1, "Error: the process gateway-0: it ended with exit code -9")
    assert not running(serving.pids)


def test_processes_end_when_their_parent_is_gone(serving: Serving) -> None:
    serving.parent.kill()
    wait_until(lambda: not running(serving.pids), "the end of the processes")


def test_gateway_processes_are_refused_without_a_free_port(broker: EmbeddedBroker) -> None:
    """SO_REUSEPORT alone would let a second gateway take a part of the connections."""
    at = ("gateway", "--bootstrap-servers", broker.bootstrap_servers, "--processes", "2", "--listen")
    outcome = CliRunner().invoke(main, [*at, f"{HOST}:0"])
    assert outcome.exit_code == 2
    assert "--processes needs a port in --listen" in outcome.output
    with socket.create_server((HOST, 0), reuse_port=True) as other:
        taken = f"{HOST}:{other.getsockname()[1]}"
        outcome = CliRunner().invoke(main, [*at, taken])
    assert outcome.exit_code == 1
    assert f"cannot listen at {taken}" in outcome.output


PATIENCE_S = 60.0
SLEEP = Path("/bin/sleep")


def test_nonempty_demo_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = invoke(main, ["demo", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty; the demo needs an empty folder" in done.stderr


def test_ended_child_is_reported_with_its_log(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("bad", "gateway", "--no-such-option")
        with pytest.raises(ChildFailed, match=r"(?s)bad failed: it ended with exit code 2.*no-such-option"):
            child.wait_for_line(lambda line: False, PATIENCE_S)
        child.stop()
        child.kill()


def test_kill_and_freeze_apply_to_all_descendant_processes(tmp_path: Path) -> None:
    """The parent watchdog serves as a child with a child process of its own."""
    with Children(tmp_path) as children:
        child = children.start("idle", "60", program=SLEEP)
        assert child.freeze() == [child.pid]
        wait_until(lambda: _state(child.pid) == "T", "a process stops after the signal, not with it")
        child.thaw()
        assert _state(child.pid) != "T"
        watchdog = next(
            pid for pid in family(os.getpid()) if child.pid in family(pid)[1:] and pid != os.getpid()
        )
        child.kill()
        wait_until(lambda: not running([child.pid, watchdog]), "both have ended")
        assert not child.is_running


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cli.processes.child import Child;"
        "print(Child('idle', ['60'], *map(Path, sys.argv[1:])).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "idle.log"), str(SLEEP)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert running([child_pid])
        parent.kill()
    wait_until(lambda: not running([child_pid]), "the child has ended")


def _state(pid: int) -> str:
    listing = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return listing.stdout.strip()[:1]
