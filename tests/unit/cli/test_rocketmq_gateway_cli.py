"""The options of a gateway for RocketMQ's clients."""

from pathlib import Path

import click
import pytest

from cli.gateway import rocketmq_gateway
from cli.rocketmq_options import ROCKETMQ_LISTENING, RocketmqListening
from cli.run import run
from gateway.rocketmq.brokers import AddressTemplate
from gateway.rocketmq.options import RocketmqOptions
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout

SERVERS, NAMESRV = "--bootstrap-servers=127.0.0.1:9092", "--namesrv=mq-1:9876;mq-2:9876"


def options(*words: str, folder: Path | None = None) -> RocketmqOptions:
    context = rocketmq_gateway.make_context("rocketmq-gateway", [SERVERS, NAMESRV, *words])
    given = RocketmqListening(**{name: context.params[name] for name in ROCKETMQ_LISTENING})
    servers = given.servers(context.params["namesrv"])
    return given.options(servers, ClientConfig("127.0.0.1:9092"), TopicLayout.named(), folder=folder)


def test_rocketmq_options_reach_the_gateway(tmp_path: Path) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: me\nsecretKey: secret\n")
    found = options(
        "--advertised-listeners=mq.example.org:{port}",
        "--broker-port=broker-a/0=9880",
        "--gateway-config=com.rocketmq.remoting.frameMaxLength=65536",
        "--gateway-config=max.connections=5",
        "--allow-request=205",
        "--no-proxy-protocol",
        f"--rocketmq-acl={keys}",
        "--gateway-name=one",
    )
    assert found.namesrv == ("mq-1:9876", "mq-2:9876")
    assert found.advertised == AddressTemplate("mq.example.org:{port}")
    assert found.broker_ports == {"broker-a/0": 9880}
    assert (found.limits.frame_bytes, found.limits.connections) == (65_536, 5)
    assert (found.proxy_line, found.credentials) == (False, ("me", "secret"))
    assert found.allowed_codes == {205}
    assert "secret" not in repr(found)
    assert (found.name, options("--listen=h:9").name.rpartition(":")[2]) == ("one", "9")
    assert options(folder=tmp_path).name == options(folder=tmp_path).name != options().name


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--broker-port=broker-a=9880",), "is not NAME/ID=PORT"),
        (("--advertised-listeners=mq:1",), "several brokers would have the same address"),
        (("--advertised-listeners=mq:{port}", "--advertised-host=mq"), "cannot be combined"),
        (("--gateway-config=max.connections=0",), "max.connections"),
        (("--gateway-config=socket.request.max.bytes=9",), "is not a setting of the gateway"),
        (("--rocketmq-acl=/dev/null",), "needs a secret key"),
    ],
)
def test_meaningless_rocketmq_options_are_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(click.ClickException, match=why):
        options(*words)


def test_unusable_rocketmq_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for option in ("--tls-certificate", "--ports"):
        with pytest.raises(click.ClickException):
            options(f"{option}={file}")


def test_rocketmq_options_of_run_need_a_cluster() -> None:
    with pytest.raises(click.UsageError, match="--rocketmq is needed for --rocketmq-listen"):
        run.main(["--rocketmq-listen=127.0.0.1:0"], standalone_mode=False)
