"""A broker before its start, and one that cannot be started."""

from pathlib import Path

import pytest

from embedded import broker as embedded_broker
from embedded.broker import BrokerFailed, EmbeddedBroker, Ports
from embedded.broker_supervision import SupervisedBroker
from embedded.java import QUICK_COMPILER
from tests.harness.started_processes import StartedProcesses


def test_clients_of_a_supervised_broker_get_its_client_settings(tmp_path: Path) -> None:
    secured = {"security.protocol": "SSL"}
    broker = EmbeddedBroker(tmp_path, ports=Ports(20_001, 20_002), client_properties=secured)
    supervised = SupervisedBroker(broker, lambda _: None)
    assert supervised.client_config.kafka_python_settings()["security_protocol"] == "SSL"
    assert supervised.client_config.bootstrap_servers == "127.0.0.1:20001"


@pytest.mark.parametrize("is_long_running", [False, True])
def test_only_long_running_broker_has_the_optimizing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long_running: bool
) -> None:
    java, commands = tmp_path / "java", tmp_path / "commands"
    java.write_text(f'#!/bin/sh\necho "$@" >> {commands}\ncase "$*" in *kafka.Kafka*) exit 1; esac\n')
    java.chmod(0o700)
    monkeypatch.setattr(embedded_broker, "find_java", lambda: java)
    with pytest.raises(BrokerFailed, match="it ended with exit code 1"):
        EmbeddedBroker(tmp_path / "data", classpath=(), is_long_running=is_long_running).start()
    format_, server = commands.read_text().splitlines()
    assert QUICK_COMPILER in format_.split()
    assert (QUICK_COMPILER in server.split()) is not is_long_running


def test_broker_whose_java_cannot_be_started_leaves_no_process_or_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").touch()  # its folder is formatted
    monkeypatch.setattr(embedded_broker, "find_java", lambda: tmp_path / "java")
    broker, started = EmbeddedBroker(tmp_path, classpath=()), StartedProcesses(monkeypatch)
    with pytest.raises(BrokerFailed, match=r"(?s)its JVM could not be started\..*FileNotFoundError"):
        broker.start()
    assert started.have_ended()
    assert broker.pid is None
