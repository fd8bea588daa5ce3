"""A long-running command that cannot start ends with a sentence and an exit code, as a process of its own."""

import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import cli
from cli import main
from embedded.broker import EmbeddedBroker
from kafka_why.contract.layout import TopicLayout
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout
from tests.harness.commands import invoke

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
    """Wait for its end, which comes by itself. Return the exit code, and what it said."""
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
    """Yield a server that takes connections and says nothing."""
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


def test_foreign_listen_address_ends_the_start_of_run(broker: EmbeddedBroker, tmp_path: Path) -> None:
    cluster = ("--bootstrap-servers", broker.bootstrap_servers, "--prefix", f"test-{uuid.uuid4()}")
    at = ("--data-dir", str(tmp_path), "--ui-host", NOT_OF_THIS_MACHINE)
    exit_code, said = ended(started("run", "--json", *cluster, *at))
    assert exit_code == 1
    why = f"Error: the Spark UI cannot listen at {NOT_OF_THIS_MACHINE}: Cannot assign "
    assert said.splitlines()[-1].startswith(why)


@click.command()
def raises() -> None:
    """A command with a fault of its own."""
    raise KeyError("unforeseen")


def test_unexpected_start_failure_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "raises", f"{__name__}:raises")
    assert failure("raises") == "Error: unexpected KeyError: 'unforeseen'"
