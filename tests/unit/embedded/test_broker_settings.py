"""Settings of the embedded broker: the refused ones, and their encoding in its properties file."""

from pathlib import Path

import pytest

from embedded.broker_settings import BrokerSettingRefused, check_broker_settings, escaped, write_settings


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
