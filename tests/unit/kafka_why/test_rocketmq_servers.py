"""Name servers, keys and TLS of a RocketMQ cluster, as RocketMQ's own tools are given them."""

import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafka_why.cli import main
from kafka_why.connections.rocketmq import parse_name_servers, read_keys, tls_context
from tests.harness.certificates import Authority


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mq-1:9876", ("mq-1:9876",)),
        ("mq-1:9876;10.0.0.2:9877;", ("mq-1:9876", "10.0.0.2:9877")),
        ("http://MQ_INST_1.mq.example:80", ("MQ_INST_1.mq.example:80",)),
    ],
)
def test_name_servers_are_read_as_rocketmq_writes_them(text: str, expected: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == expected


@pytest.mark.parametrize("text", ["", ";", "mq-1", "mq-1:x"])
def test_name_server_list_without_a_port_or_a_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name server|HOST:PORT"):
        parse_name_servers(text)


def test_rocketmq_access_keys_come_from_tools_yml_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("# Licensed\n\naccessKey: rocketmq2\nsecretKey: '12345678'  # of the admin\n")
    environ = {"ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "s"}
    assert read_keys(file, environ) == ("rocketmq2", "12345678")
    file.write_text("accessKey: a#b\nsecretKey: it's#1 # of the admin\n")
    assert read_keys(file, environ) == ("a#b", "it's#1")
    assert read_keys(None, environ) == ("a", "s")
    assert read_keys(None, {}) is None
    with pytest.raises(ValueError, match="ROCKETMQ_SECRET_KEY"):
        read_keys(None, {"ROCKETMQ_ACCESS_KEY": "a"})


def test_tls_verifies_the_server_only_if_the_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.authServer=false\n")
    assert tls_context(file).verify_mode is ssl.CERT_NONE
    file.write_text("tls.client.authServer=TRUE\n")
    assert tls_context(file).verify_mode is ssl.CERT_REQUIRED
    authority = Authority(tmp_path)
    file.write_text(f"tls.client.authServer=true\ntls.client.trustCertPath={authority.certificate}\n")
    assert tls_context(file).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["why", "g", "--namesrv", "mq"], {}, "'mq' is not HOST:PORT"),
        (["why", "--namesrv", "mq:1"], {}, "Missing argument 'GROUP'"),
        (["why", "g", "--namesrv", "mq:1", "--since", "1h"], {}, "--namesrv does not go with --since"),
        (["page", "--namesrv", "mq:1", "--prefix", "x"], {}, "--namesrv does not go with --prefix"),
        (["why", "g", "--from-dir", "."], {"NAMESRV_ADDR": "mq:1"}, ". has no files in events"),
    ],
)
def test_options_of_other_sources_are_refused_beside_name_servers(
    arguments: list[str], environ: dict[str, str], message: str
) -> None:
    answer = CliRunner(env=environ).invoke(main, arguments)
    assert answer.exit_code != 0
    assert message in answer.output


def test_name_servers_that_do_not_answer_are_named_with_the_reason() -> None:
    answer = CliRunner().invoke(main, ["why", "g", "--namesrv", "127.0.0.1:1;127.0.0.1:2"])
    assert answer.exit_code == 1
    assert "name server 127.0.0.1:1 does not answer: " in answer.output
    assert "; name server 127.0.0.1:2 does not answer: " in answer.output
