"""Options with an address or a number are checked when they are parsed; the links of commands to the page."""

import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli import main
from cli.gateway_options import ListenerOptions
from cli.rocketmq_options import RocketmqListenerOptions
from cli.run import run
from cli.run_options import RunOptions
from kafka_why.cli.parameters import (
    ADDRESS,
    HOST,
    INT64,
    SERVERS,
    DecimalNumber,
    WholeNumber,
    client_config_of,
    link,
    pop_fields,
)
from kafka_why.connections.address import parse_host, parse_servers
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.series import SeriesBounds
from kafka_why.notify.messages import KINDS
from streaming.service.starts import Options
from tests.harness.commands import invoke

ADDRESSES = ("bootstrap", "host", "listen", "gateway")
NOT_ADDRESSES = {"no_gateway"}


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return all commands, including those of `groups`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


OPTIONS = [
    (path, parameter)
    for path, command in commands(main)
    for parameter in command.params
    if any(word in str(parameter.name) for word in ADDRESSES) and parameter.name not in NOT_ADDRESSES
]
IDS = [" ".join((*path, parameter.opts[0])) for path, parameter in OPTIONS]
WRONG = {SERVERS: "kafka-1,kafka-2", ADDRESS: "127.0.0.1", HOST: "127.0.0.1:9192"}


def test_address_tests_cover_every_command_that_needs_a_cluster() -> None:
    with_servers = {path[0] for path, parameter in OPTIONS if parameter.type is SERVERS}
    assert with_servers == {
        "assign",
        "gateway",
        "groups",
        "notify",
        "observe",
        "page",
        "record",
        "replay",
        "rocketmq-gateway",
        "run",
        "state",
        "whatif",
        "why",
    }


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_invalid_address_option_reports_expected_form(path: tuple[str, ...], option: click.Parameter) -> None:
    kind = next(kind for kind in WRONG if option.type is kind)
    name = option.opts[0]
    others = ["NAME"] if path in (("why",), ("state", "export")) else []
    result = CliRunner().invoke(main, [*path, *others, name, WRONG[kind]])
    assert result.exit_code == (1 if path[0] == "groups" else 2)
    *_, last = result.stderr.strip().splitlines()
    assert name in last
    assert "expected is a" in last


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("kafka-1:9092", "kafka-1:9092"),
        ("kafka-1:9092, 10.0.0.1:1\n", "kafka-1:9092,10.0.0.1:1"),
        ("PLAINTEXT://kafka-1:9092, kafka://kafka-2:9092", "kafka-1:9092,kafka-2:9092"),
        ("SASL_SSL://[::1]:9093,EXTERNAL-1.a://b:1,://c:2", "[::1]:9093,b:1,c:2"),
        ("[::1]:9092,my_kafka.example.org.:65535", "[::1]:9092,my_kafka.example.org.:65535"),
    ],
)
def test_valid_server_lists_are_accepted(text: str, servers: str) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "kafka", "kafka-1,kafka-2", "kafka-1:9092,", "kafka:", ":9092", "kafka:0", "kafka:65536"),
        *(
            "kafka:9092 other:9092",
            "http://kafka:9092",
            "a,HTTPS://kafka:9092",
            "kafka+ssl://kafka:9092",
            "PLAINTEXT://SSL://kafka:9092",
            "kafka://kafka:9092/",
            "kafka://kafka",
            "::1:9092",
            "[kafka]:9092",
            "kafka:9" + "0" * 5_000,
        ),
        *("ka fka:9092", "-kafka:9092", "kafka-:9092", "kafka:٣", "kafka:b", "kafka:-1"),
    ],
)
def test_invalid_server_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT|has port 0"):
        parse_servers(text)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT", "sasl_ssl"])
def test_server_of_secured_protocol_needs_client_settings(tmp_path: Path, protocol: str) -> None:
    servers = f"kafka-1:9092,{protocol}://kafka-2:9093"
    with pytest.raises(click.BadParameter, match=rf"give kafka-2:9093 with .*protocol={protocol.upper()}$"):
        client_config_of(servers, None)
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n")
    config = client_config_of(servers, properties)
    assert config is not None
    assert config.bootstrap_servers == "kafka-1:9092,kafka-2:9093"


def test_servers_in_a_file_may_name_their_protocol(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=PLAINTEXT://kafka-1:9092\n")
    assert client_config_of(None, properties) == ClientConfig("kafka-1:9092")


@pytest.mark.parametrize(
    ("text", "host"), [("a", "a"), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("[::1]", "::1"), (" a.b ", "a.b")]
)
def test_valid_hosts_are_accepted(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["", "a:1", "[a]", "http://a", "a/b", "[::1]:80", "a b"])
def test_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        parse_host(text)


NOBODY = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.mark.parametrize("page_url", ["http://127.0.0.1:8080", "http://127.0.0.1:8080/"])
def test_page_link_leads_to_groups_with_any_name(page_url: str) -> None:
    assert link(page_url) == "http://127.0.0.1:8080/"
    assert link(page_url, "orders") == "http://127.0.0.1:8080/group?id=orders"
    assert link(page_url, "a&b=c/\N{SNOWMAN}\n") == (
        "http://127.0.0.1:8080/group?id=a%26b%3Dc%2F%E2%98%83%0A"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["why", "g", "--page-url"],
        ["groups", "describe", "--group", "g", "--page-url"],
        ["page", "--metrics-url"],
    ],
)
@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "javascript:alert(1)", "http://", "http://[", "http://h/?q=1"]
)
def test_invalid_page_url_is_a_usage_error(command: list[str], url: str) -> None:
    result = CliRunner().invoke(main, [*command, url, *NOBODY])
    assert result.exit_code in (1, 2)
    assert "expected is an address such as http://127.0.0.1:8080/" in result.stderr


OURS = (WholeNumber, DecimalNumber)
# Those of click, which use int() and float().
FOREIGN = (click.types.IntParamType, click.types.FloatParamType)
NUMBERS = [
    pytest.param(path, parameter, id=" ".join((*path, parameter.opts[0])))
    for path, command in commands(main)
    for parameter in command.params
    if isinstance(parameter.type, FOREIGN) or parameter.type is INT64
    if not (isinstance(parameter, click.Option) and parameter.count)
]


@pytest.mark.parametrize(("path", "option"), NUMBERS)
def test_number_option_accepts_only_ascii_digits(path: tuple[str, ...], option: click.Parameter) -> None:
    assert option.type is INT64 or isinstance(option.type, OURS)
    context = click.Context(click.Command("a"))
    for text in ("1_0", "\N{FULLWIDTH DIGIT ONE}", " 1", "nan", "9" * 5_000):
        with pytest.raises(click.BadParameter, match=r"is not a whole number|is not a number|is not between"):
            option.type.convert(text, option, context)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "needs one of --url and --url-file"),
        ("--url https://h/ --url-file {file}", "needs one of --url and --url-file"),
        ("--url hooks", "it is not an address such as https://HOST/PATH"),
        ("--url-file {file}", "the first line of {file} cannot be used"),
        (
            "--url http://hooks.example.org/ --token-file {file}",
            "a token is sent by https only, or to this machine",
        ),
        ("--url https://h/ --token-file {empty}", "has nothing in its first line"),
        ("--url https://h/ --ca-file {file}", "it has no certificate as PEM"),
        *(("--url https://h/ --kind lag", f"'{kind}'") for kind in KINDS),
        ("--url https://h/ --format xml", "'alertmanager-webhook'"),
    ],
)
def test_refused_notify_options_do_not_show_the_secret(words: str, why: str, tmp_path: Path) -> None:
    files = {"file": tmp_path / "secret", "empty": tmp_path / "empty"}
    files["file"].write_text("s3cret\n")
    files["empty"].touch()
    result = invoke(main, ["notify", *NOBODY, *words.format(**files).split()])
    assert result.exit_code == 2, result.output
    said = " ".join(result.stderr.split())
    assert why.format(**files) in said
    assert "s3cret" not in said


PEM = Path(__file__).parents[2] / "data" / "gateway.pem"


@pytest.fixture(autouse=True)
def keeps_signal_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        ("-c nonsense", 2, "'nonsense' is not NAME=VALUE"),
        ("-c group.min.size=1", 2, "unknown setting 'group.min.size'; did you mean group.max.size or"),
        (
            "-c group.max.size=many",
            2,
            "Invalid value for -c: group.max.size must be a whole number, not 'many'",
        ),
        ("-c group.max.size=0", 2, "group.max.size must be from 1 to 2147483647, not 0"),
        ("--tick-interval-ms 1", 2, "1 is not in the range x>=10"),
        ("--skip-record 12", 2, "'12' is not group-coordinator-requests-PARTITION-OFFSET"),
        ("--skip-record x-requests-0-1", 2, "'x-requests-0-1' is not group-coordinator-requests-"),
        (f"--data-dir {__file__}", 2, "is a file"),
        ("--nonsense", 2, "No such option"),
        ("--broker-config nonsense", 2, "'nonsense' is not NAME=VALUE"),
        ("--broker-config log.dirs=/tmp", 2, "log.dirs cannot be set: the embedded broker is one"),
        ("--broker-config a=b --bootstrap-servers a:1", 2, "--client-config names another"),
        ("--no-gateway --advertised-host a", 2, "cannot be combined with --advertised-host"),
        ("--no-gateway --gateway a:1", 2, "cannot be combined with --gateway"),
        ("--reply-partition 16", 2, "Invalid value for --reply-partition: 16 is not one of 0 to 15"),
        (f"--tls-key {PEM}", 1, "a TLS key needs its certificate"),
        (f"--tls-certificate {__file__}", 1, f"the TLS certificate {__file__} cannot be used"),
        ("--bootstrap-servers localhost:port", 2, "'localhost:port' is not HOST:PORT; expected is a list"),
        (
            "--metrics-group-pattern (",
            2,
            "'(' is not a regular expression of RE2: missing ): (; expected is one such as",
        ),
        ("--standby", 2, "--standby needs --checkpoint, and --bootstrap-servers or --client-config"),
        ("--standby --checkpoint /shared", 2, "--standby needs --checkpoint"),
        ("--master mesos://a:5050", 2, "'--master': 'mesos://a:5050' is not a master of Spark"),
        ("--spark-conf spark.speculation=true", 2, "--spark-conf: spark.speculation cannot be changed"),
        ("--spark-conf spark.executor.memory", 2, "is not NAME=VALUE"),
        ("--state-partitions 0", 2, "'--state-partitions': 0 is not in the range"),
    ],
)
def test_invalid_run_arguments_are_reported_before_anything_starts(
    tmp_path: Path, arguments: str, exit_code: int, message: str
) -> None:
    outcome = CliRunner().invoke(main, ["run", "--data-dir", str(tmp_path / "data"), *arguments.split()])
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert exit_code == 1 or not (tmp_path / "data").exists()


# Where no option of `run` leads to: tests and measurements set these.
NOT_OF_RUN = {"rest_interval_ms", "first_request_wait_s"}
EACH = """
    --bootstrap-servers kafka:9092 --checkpoint /shared/checkpoint --prefix other --request-partitions 3
    --reply-partitions 5 --max-message-bytes 8000000 --replication-factor 2 --min-insync-replicas 2 --shards 8
    -c group.max.size=7 --tick-interval-ms 50 --topic-interval-ms 700 --no-replica --batch-interval-ms 20
    --clock-lag-ms 30 --skip-record other-requests-0-1 --ui-host 127.0.0.2 --ui-port 4041 --take-over-topics
    --standby --master spark://a:7077 --driver-host 10.0.0.1 --state-partitions 2 --spark-conf
    spark.executor.cores=2
"""


def told(*words: str) -> RunOptions:
    given = run.make_context("run", [*words]).params
    reached = client_config_of(given.pop("bootstrap_servers"), given.pop("properties"))
    parts = {
        "listening": pop_fields(ListenerOptions, given),
        "rocketmq": pop_fields(RocketmqListenerOptions, given, "rocketmq_"),
        "series": pop_fields(SeriesBounds, given),
    }
    return pop_fields(RunOptions, {**given, **parts, "client_config": reached})


def test_run_options_reach_the_coordinator() -> None:
    client_config, folder = ClientConfig("kafka:9092"), Path("folder")
    options = told(*EACH.split()).coordinator_options(client_config, folder)
    default = Options(client_config, folder)
    same = {it.name for it in fields(Options) if getattr(options, it.name) == getattr(default, it.name)}
    assert same == NOT_OF_RUN | {"client_config", "folder"}
    assert options.settings == {"group.max.size": "7"}
    assert options.layout.requests_topic == "other-requests"
    assert (options.layout.request_partitions, options.layout.reply_partitions) == (3, 5)
    assert options.layout.request_record_max_bytes == options.layout.response_record_max_bytes == 8_000_000
    assert (options.master, options.driver_host) == ("spark://a:7077", "10.0.0.1")
