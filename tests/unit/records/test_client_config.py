"""The file of client settings: its format, its references, and what its errors must not say."""

import pickle
from pathlib import Path

import pytest

from records.client_config import ClientConfig, ClientConfigError

SECRET = "k3y-0f-the-house"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_file_has_the_format_of_java_properties(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "# comment\nbootstrap.servers = kafka-1:9092, kafka-2:9092\n"
        'sasl.jaas.config: org.Module required \\\n    username="a";\nsecurity.protocol=SASL_SSL\n',
    )
    config = ClientConfig.read(path)
    assert config.bootstrap_servers == str(config) == "kafka-1:9092,kafka-2:9092"
    assert config.properties == {
        "sasl.jaas.config": 'org.Module required username="a";',
        "security.protocol": "SASL_SSL",
    }


def test_given_servers_replace_those_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "bootstrap.servers=kafka:9092")
    assert ClientConfig.read(path, "other:9092") == ClientConfig("other:9092")


def test_values_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_OF_KAFKA", "alice")
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    path = written(tmp_path, f"sasl.jaas.config=u=${{env:USER_OF_KAFKA}} p=${{file:{tmp_path}/secret}}")
    assert ClientConfig.read(path, "kafka:9092").properties == {"sasl.jaas.config": f"u=alice p={SECRET}"}


def test_text_of_it_has_no_setting() -> None:
    config = ClientConfig("kafka:9092", {"sasl.password": SECRET})
    assert repr(config) == "ClientConfig(bootstrap_servers='kafka:9092')"
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bootstrap.servers=kafka", r"bootstrap\.servers in .*client\.properties: 'kafka' is not"),
        (
            "security.protocol=SSL",
            r"has no bootstrap\.servers, and no other servers are given",
        ),
        (
            "ssl.key=${env:NO_SUCH_NAME}",
            r"ssl\.key in .*: env:NO_SUCH_NAME cannot be read: it is not set",
        ),
        (
            "ssl.key=${file:/no/such}",
            r"ssl\.key in .*: file:/no/such cannot be read: No such file",
        ),
        (f"ssl.key={SECRET}\\u12", r"client settings in .* cannot be read: InvalidUEscapeError"),
    ],
)
def test_errors_name_the_setting_and_no_value(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ClientConfigError, match=error) as raised:
        ClientConfig.read(written(tmp_path, text))
    assert SECRET not in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientConfigError, match=r"settings in .*none cannot be read: No such file"):
        ClientConfig.read(tmp_path / "none")
