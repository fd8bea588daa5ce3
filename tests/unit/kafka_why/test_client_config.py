"""The file of client settings: its format, its references, and what its errors must not say."""

import pickle
from pathlib import Path

import pytest

from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.used_settings import ClientConfigError

SECRET = "k3y-0f-the-house"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def servers_of(text: str) -> str | None:
    return "kafka:1" if "${" in text else None


def test_repr_of_client_config_shows_no_settings() -> None:
    config = ClientConfig("kafka:9092", {"ssl.key.password": SECRET})
    assert repr(config) == "ClientConfig(bootstrap_servers='kafka:9092')"
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(pickle.loads(pickle.dumps(config)))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bootstrap.servers=kafka", r"bootstrap\.servers in .*client\.properties: 'kafka' is not"),
        ("security.protocol=SSL", r"has no bootstrap\.servers, and no other servers are given"),
        (
            "security.protocol=SSL\nssl.keystore.key=${env:NO_SUCH_NAME}",
            r"ssl\.keystore\.key in .*: env:NO_SUCH_NAME cannot be read: it is not set",
        ),
        (
            "security.protocol=SSL\nssl.keystore.key=${file:/no/such}",
            r"ssl\.keystore\.key in .*: file:/no/such cannot be read: No such file",
        ),
        (
            "bootstrap.servers=kafka:1\nack5=all\nssl.keystore.kye=all",
            r"client\.properties: ssl\.keystore\.kye: no Kafka client .* Did you mean ssl\.keystore\.key\?",
        ),
        (f"ssl.key={SECRET}\\u12", r"settings in .* cannot be read: InvalidUEscapeError"),
    ],
)
def test_errors_name_the_setting_and_no_value(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ClientConfigError, match=error) as raised:
        ClientConfig.read(written(tmp_path, text), servers_of(text))
    assert SECRET not in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match=r"settings in .*none cannot be read: No such file"):
        ClientConfig.read(tmp_path / "none")
