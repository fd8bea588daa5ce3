"""The options of a gateway as a service, and those about ACLs."""

from ipaddress import ip_network
from pathlib import Path

import click
import pytest

from cli.gateway import gateway, rocketmq_gateway
from cli.gateway_options import LISTENER_OPTION_NAMES, ListenerOptions
from cli.rocketmq_options import RocketmqListenerOptions
from cli.run import run
from cli.run_gateway import KafkaGatewayToStart
from gateway.authorization.sources import INTERVAL_S, AclOptions
from gateway.net.advertised import Template
from gateway.net.server import GatewayOptions
from gateway.rocketmq.brokers import AddressTemplate
from gateway.rocketmq.options import RocketmqOptions
from kafka_why.cli.parameters import pop_fields
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from streaming.service.starts import Options
from tests.harness.certificates import Authority

SERVERS = "--bootstrap-servers=127.0.0.1:9092"


def listening(*words: str) -> ListenerOptions:
    context = gateway.make_context("gateway", [SERVERS, *words])
    return ListenerOptions(**{name: context.params[name] for name in LISTENER_OPTION_NAMES})


def options_of(given: ListenerOptions) -> GatewayOptions:
    return given.options(ClientConfig("127.0.0.1:9092"), TopicLayout.named(), given.security())


def test_gateway_options_reach_the_gateway(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("")
    given = listening(
        "--gateway-config=max.connections=5",
        "--gateway-config=connections.max.idle.ms = 1500",
        "--advertised-listeners=gw1:{port}, gw2:{port}",
        f"--quotas={quotas}",
        "--drain-timeout=2.5",
        "--proxy-protocol-from=10.0.0.5",
    )
    options = options_of(given)
    assert (options.limits.connections, options.limits.idle_timeout_s) == (5, 1.5)
    assert options.templates == (Template("gw1:{port}"), Template("gw2:{port}"))
    assert options.quotas == quotas
    assert options.proxies == (ip_network("10.0.0.5"),)
    assert given.drain_timeout_s == 2.5


@pytest.mark.parametrize(
    ("words", "protocols", "is_offered"),
    [
        ((), "classic,consumer,streams", (True, True)),
        ((), "classic", (False, False)),
        ((), "classic,streams", (False, True)),
        (("--no-consumer-protocol",), "classic,consumer,streams", (False, True)),
        (("--no-streams-protocol",), "classic,consumer,streams", (True, False)),
    ],
)
def test_gateway_offers_a_protocol_only_if_its_coordinator_does(
    words: tuple[str, ...], protocols: str, is_offered: tuple[bool, bool]
) -> None:
    coordinator = Options(
        ClientConfig("127.0.0.1:9092"), Path(), settings={"group.coordinator.rebalance.protocols": protocols}
    )
    options = KafkaGatewayToStart(listening(*words), 1).options(coordinator)
    assert (options.consumer_protocol, options.streams_protocol) == is_offered


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--gateway-config=max.connections"], "'max.connections' is not NAME=VALUE"),
        (["--gateway-config=max.connections=none"], "'none' is not a whole number"),
        (["--gateway-config=group.max.size=1"], "group.max.size is not a setting of the gateway"),
        (["--advertised-listeners=gateway:9092"], "all brokers would have the same address"),
        (["--advertised-listeners=gateway"], "is not HOST:PORT"),
        (["--advertised-listeners=g:{port}", "--advertised-host=g"], "cannot be combined"),
        (["--drain-timeout=-1"], "-1"),
        (["--quotas=nothing.toml"], "does not exist"),
        (["--proxy-protocol-from=lb"], "does not appear to be an IPv4 or IPv6 network"),
        (["--super-users=User:admin"], "--super-users needs --acls"),
        (["--allow-everyone-if-no-acl-found"], "--allow-everyone-if-no-acl-found needs --acls"),
        (["--acls=cluster", "--super-users=User:a;admin"], "'admin' is not TYPE:NAME, such as User:admin"),
        (["--acls=cluster", "--super-users=:admin"], "':admin' is not TYPE:NAME"),
        (["--acls=cluster", "--super-users=User:"], "'User:' is not TYPE:NAME"),
    ],
)
def test_unusable_gateway_options_are_refused_at_once(words: list[str], why: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        options_of(listening(*words))
    assert why in refused.value.format_message()


@pytest.mark.parametrize("option", ["--quotas", "--acls"])
def test_run_reads_gateway_files_before_anything_starts(option: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(f"{option[2:]} = []")
    KafkaGatewayToStart(listening(f"{option}={path}"), 1)
    path.write_text("no TOML")
    with pytest.raises(UserFacingError, match=f"in {path} cannot be read"):
        KafkaGatewayToStart(listening(f"{option}={path}"), 1)


@pytest.mark.parametrize(
    ("words", "acls"),
    [
        ([], None),
        (["--acls", "cluster"], AclOptions(None, frozenset(), False, INTERVAL_S)),
        (["--acls", "acls.toml"], AclOptions(Path("acls.toml"), frozenset(), False, INTERVAL_S)),
        # By semicolons, as in Kafka, because names of certificates have commas.
        (
            ["--acls=cluster", "--super-users=User:admin; User:CN=ops,O=acme;", "--acls-interval-s=1"],
            AclOptions(None, frozenset({"User:admin", "User:CN=ops,O=acme"}), False, 1.0),
        ),
        (
            ["--acls", "cluster", "--allow-everyone-if-no-acl-found"],
            AclOptions(None, frozenset(), True, INTERVAL_S),
        ),
    ],
)
def test_acl_options_reach_the_gateway(words: list[str], acls: AclOptions | None) -> None:
    assert options_of(listening(*words)).acls == acls


SERVERS, NAMESRV = "--bootstrap-servers=127.0.0.1:9092", "--namesrv=mq-1:9876;mq-2:9876"


def options(*words: str, folder: Path | None = None) -> RocketmqOptions:
    context = rocketmq_gateway.make_context("rocketmq-gateway", [SERVERS, NAMESRV, *words])
    given = pop_fields(RocketmqListenerOptions, dict(context.params), "rocketmq_")
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
        "--proxy-protocol-from=10.0.1.0/24",
        "--proxy-protocol-from=::1",
        "--lag-queues=7",
    )
    assert found.namesrv == ("mq-1:9876", "mq-2:9876")
    assert found.advertised == AddressTemplate("mq.example.org:{port}")
    assert found.broker_ports == {"broker-a/0": 9880}
    assert (found.limits.frame_bytes, found.limits.connections) == (65_536, 5)
    assert (found.proxy_line, found.credentials) == (False, ("me", "secret"))
    assert found.allowed_codes == {205}
    assert found.lag_queues == 7
    assert found.proxies == (ip_network("10.0.1.0/24"), ip_network("::1"))
    assert "secret" not in repr(found)
    assert (found.name, options("--listen=h:9").name.rpartition(":")[2]) == ("one", "9")
    assert options(folder=tmp_path).name == options(folder=tmp_path).name != options().name


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--broker-port=broker-a=9880",), "is not NAME/ID=PORT"),
        (("--advertised-listeners=mq",), "is not HOST:PORT"),
        (("--advertised-listeners=mq:{port}", "--advertised-host=mq"), "cannot be combined"),
        (("--gateway-config=max.connections=0",), "max.connections"),
        (("--gateway-config=socket.request.max.bytes=9",), "is not a setting of the gateway"),
        (("--rocketmq-acl=/dev/null",), "needs a secret key"),
        (("--tls-mode=permissive",), "needs a certificate"),
        (("--proxy-protocol-from=10.0.1.1/24",), "has host bits set"),
    ],
)
def test_meaningless_rocketmq_options_are_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(click.ClickException, match=why):
        options(*words)


@pytest.mark.parametrize(("words", "is_permissive"), [((), False), (("--tls-mode=permissive",), True)])
def test_tls_is_enforced_unless_it_is_permissive(
    words: tuple[str, ...], is_permissive: bool, tmp_path: Path
) -> None:
    certificate = Authority(tmp_path).issue("gateway").both
    found = options(f"--tls-certificate={certificate}", *words)
    assert (found.security.tls is not None, found.is_tls_permissive) == (True, is_permissive)


def test_unusable_rocketmq_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for option in ("--tls-certificate", "--ports"):
        with pytest.raises(click.ClickException):
            options(f"{option}={file}")


def test_rocketmq_options_of_run_need_a_cluster() -> None:
    with pytest.raises(click.UsageError, match="--rocketmq is needed for --rocketmq-listen"):
        run.main(["--rocketmq-listen=127.0.0.1:0"], standalone_mode=False)
