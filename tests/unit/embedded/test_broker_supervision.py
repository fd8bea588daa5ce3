"""The settings of the embedded broker, a broker before its start, and one that cannot be started."""

from pathlib import Path

import pytest

from embedded import broker as embedded_broker
from embedded.broker import (
    BrokerFailed,
    BrokerSettingRefused,
    EmbeddedBroker,
    Ports,
    check_broker_settings,
    escaped,
    write_settings,
)
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


@pytest.mark.parametrize(
    "name",
    [
        *(
            "listeners",
            "advertised.listeners",
            "listener.security.protocol.map",
            "listener.name.client.ssl.key",
        ),
        *("inter.broker.listener.name", "security.inter.broker.protocol", "controller.listener.names"),
        *("controller.quorum.voters", "process.roles", "node.id", "broker.id", "log.dir", "log.dirs"),
        *("metadata.log.dir", "LOG.DIRS"),
    ],
)
def test_settings_fixed_by_the_embedded_broker_cannot_be_set(name: str) -> None:
    with pytest.raises(BrokerSettingRefused, match=f"{name} cannot be set: the embedded broker is one node"):
        check_broker_settings({name: "1"})


@pytest.mark.parametrize(
    "name", ["default.replication.factor", "offsets.topic.replication.factor", "min.insync.replicas"]
)
def test_replication_settings_can_only_be_one(name: str) -> None:
    check_broker_settings({name: "1"})
    with pytest.raises(BrokerSettingRefused, match=f"{name} can only be 1, because there is one broker"):
        check_broker_settings({name: "3"})


@pytest.mark.parametrize("name", ["", "a b", "a\nlisteners", "#a", "ä"])
def test_invalid_broker_setting_name_is_refused(name: str) -> None:
    with pytest.raises(BrokerSettingRefused, match="is not the name of a broker setting"):
        check_broker_settings({name: "1"})


def test_setting_value_with_a_line_break_is_refused() -> None:
    with pytest.raises(
        BrokerSettingRefused, match=r"the value of num\.partitions has characters that cannot"
    ):
        check_broker_settings({"num.partitions": "1\nlisteners=CLIENT://0.0.0.0:9092"})


def test_setting_values_are_escaped_for_java() -> None:
    assert escaped(r"C:\kafka é 😀") == r"C:\\kafka \u00e9 \ud83d\ude00"


def test_settings_file_is_private_even_if_it_existed(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("an earlier version's")
    path.chmod(0o644)
    write_settings(path, {"password": "a\\b"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "password=a\\\\b\n"
