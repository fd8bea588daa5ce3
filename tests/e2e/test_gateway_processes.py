"""`group-coordinator gateway --processes`: several processes on the same ports."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey

from cli import main
from embedded.broker import EmbeddedBroker
from gateway.upstream.connections import Address
from tests.e2e.harness import child_pids, command_of, running, wait_until
from tests.e2e.listening import links_of
from tests.harness.ports import gateway_port
from tests.harness.raw_client import RawClient, connected
from tests.harness.shared import PREFIX, Coordinated

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

COMMAND = [sys.executable, "-c", "from cli import main; main()", "gateway"]
HOST = "127.0.0.1"
PROCESSES, CONNECTIONS = 2, 40
END_TIMEOUT_S = 30.0
HEARTBEAT, COORDINATOR_NOT_AVAILABLE, UNKNOWN_MEMBER_ID = 12, 15, 25


class Serving(NamedTuple):
    """A gateway of several processes, the ids of those that serve, and the address of their metrics."""

    parent: subprocess.Popen[str]
    address: Address
    pids: list[int]
    metrics: str

    def ended(self) -> tuple[int, str]:
        """Return the exit code, and the last line of standard error, when it ends."""
        _, stderr = self.parent.communicate(timeout=END_TIMEOUT_S)
        return self.parent.returncode, (stderr.strip().splitlines() or [""])[-1]


@pytest.fixture
def serving(broker: EmbeddedBroker, coordinated: Coordinated) -> Iterator[Serving]:
    port = gateway_port(above=3)
    at = ["--listen", f"{HOST}:{port}", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    with subprocess.Popen(
        [*COMMAND, *at, "--processes", str(PROCESSES), "--json"],
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
        """Asked again where the coordinator stood still."""
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
    """Return the heartbeats that all processes have answered together. 0 before there is one."""
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
