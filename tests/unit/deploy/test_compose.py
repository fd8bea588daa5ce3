"""docker-compose.yml and deploy/: the checks that need no Docker."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kafka.protocol.api_key import ApiKey
from prometheus_client import CollectorRegistry

from cli.run import run
from deploy.healthcheck import main as healthcheck
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.counts import Counts
from gateway.metrics.numbers import FAMILIES, counted
from insight.metrics.http import HttpPort
from streaming.replica.lead import LEAD_MAX_BYTES, LEAD_MAX_S
from tests.harness.ports import free_port
from tests.harness.scraped import busy

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
LOOPBACK = "127.0.0.1"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "group-coordinator.json"
METRIC = re.compile(r"\b(?:kafka|rocketmq|group_coordinator)_\w+")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


COMPOSE = read_yaml(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
COORDINATOR = SERVICES["coordinator"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def option(name: str) -> str:
    """An option of the coordinator's command line."""
    (value,) = [word.partition("=")[2] for word in COORDINATOR["command"] if word.startswith(f"--{name}=")]
    return str(value)


def published(service: str) -> tuple[str, int, int]:
    """Address and port on the host, and port in the container, of the first published port."""
    address, host_port, container_port = SERVICES[service]["ports"][0].split(":")
    return address, int(host_port), int(container_port)


def rules() -> list[dict[str, Any]]:
    """All rules of the alerts."""
    return [rule for group in read_yaml(DEPLOY / "alerts.yml")["groups"] for rule in group["rules"]]


def shown() -> list[str]:
    """All PromQL expressions of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def expressions() -> Iterator[str]:
    """All PromQL expressions of the dashboard and of the alerts."""
    yield from shown()
    yield from (rule["expr"] for rule in rules())


def test_images_are_pinned() -> None:
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", DOCKERFILE, re.MULTILINE)
    bases = {base for base, _ in stages} - {name for _, name in stages}
    images = [service["image"] for service in SERVICES.values()]
    for image in (*images, *bases):
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), image


def test_versions_are_those_of_the_project() -> None:
    jars = tomllib.loads((ROOT / "embedded" / "jars.toml").read_text())
    (broker,) = (a for a in jars["broker"]["artifacts"] if a.startswith("org.apache.kafka:"))
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{broker.rpartition(':')[2]}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert COORDINATOR["image"] == f"{project['name']}:{project['version']}"


def test_everything_is_published_to_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert {port.split(":")[0] for port in ports} == {"127.0.0.1"}


def test_the_coordinators_command_line_is_understood() -> None:
    command, *arguments = COORDINATOR["command"]
    assert command == run.name
    context = run.make_context(command, arguments)
    assert context.params["metrics_port"] == int(option("metrics-port"))
    assert context.params["metrics_host"] == "0.0.0.0"
    assert context.params["as_json"]


def test_ports_agree_from_the_coordinator_to_the_dashboard() -> None:
    port = int(option("metrics-port"))
    assert published("coordinator") == ("127.0.0.1", port, port)
    assert urlsplit(COORDINATOR["healthcheck"]["test"][-1]).port == port
    exposed = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    assert exposed == [" ".join(text.split(":")[2] for text in COORDINATOR["ports"])]
    (job,) = read_yaml(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"coordinator:{port}"]}]
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == f"http://prometheus:{published('prometheus')[2]}"
    for name in ("prometheus", "grafana"):
        assert urlsplit(SERVICES[name]["healthcheck"]["test"][-1]).port == published(name)[2]


def test_kafka_is_found_from_inside_and_from_outside() -> None:
    environment = SERVICES["kafka"]["environment"]
    advertised = dict(item.split("://") for item in environment["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listening = dict(item.split("://") for item in environment["KAFKA_LISTENERS"].split(","))
    assert advertised["INTERNAL"] == option("bootstrap-servers")
    assert listening["INTERNAL"] == f":{option('bootstrap-servers').partition(':')[2]}"
    address, host_port, container_port = published("kafka")
    assert advertised["HOST"] == f"{address}:{host_port}"
    assert listening["HOST"] == f":{container_port}"
    protocols = environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]
    assert set(listening) == {item.partition(":")[0] for item in protocols.split(",")}


def test_clients_find_every_broker_through_the_gateway() -> None:
    command, *arguments = COORDINATOR["command"]
    context = run.make_context(command, arguments)
    assert not context.params["no_gateway"]
    assert context.params["listen"].host == "0.0.0.0"
    assert context.params["advertised_host"] == "127.0.0.1"
    first = context.params["listen"].port
    of_the_broker = first + 1 + int(SERVICES["kafka"]["environment"]["KAFKA_NODE_ID"])
    _, *ports = [tuple(map(int, port.split(":")[1:])) for port in COORDINATOR["ports"]]
    assert ports == [(first, first), (of_the_broker, of_the_broker)]


def test_volumes_are_declared_and_mounted_files_exist() -> None:
    mounted = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", [])]
    named = {source for source, *_ in mounted if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    assert all((ROOT / source).exists() for source, *_ in mounted if source.startswith("."))
    targets = [target for _, target, *_ in mounted]
    assert option("data-dir") in targets
    assert SERVICES["kafka"]["environment"]["KAFKA_LOG_DIRS"] in targets
    assert read_yaml(DEPLOY / "prometheus.yml")["rule_files"] == ["/etc/prometheus/alerts.yml"]
    (provider,) = read_yaml(DEPLOY / "grafana/provisioning/dashboards/group-coordinator.yml")["providers"]
    assert provider["options"]["path"] in targets
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


def test_the_packages_are_sent_to_the_images_build() -> None:
    sent = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert all((ROOT / name).exists() for name in sent)
    assert {path.parent.name for path in ROOT.glob("*/py.typed")} <= sent
    named = re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {word for line in named for word in line.split()} - {"."} <= sent


def gateway_metrics() -> CollectorRegistry:
    """The metrics of a gateway that has counted one of everything."""
    counts = Counts()
    counts.answer(ApiKey.Heartbeat, 0.1)
    counts.coordinator_answer("Heartbeat", 0.1)
    counts.errors[ApiKey.Heartbeat, 15] += 1
    counts.refused["max.connections"] += 1
    counts.throttled[ApiKey.Heartbeat] += 1
    gauges = {name: {("",) * len(f.labels): [1.0]} for name, f in FAMILIES.items() if f.kind == "gauge"}
    registry = CollectorRegistry()
    registry.register(GatewayCollector(lambda: {**counted(counts), **gauges}))
    return registry


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_are_served() -> None:
    samples = [
        sample
        for registry in (busy().registry, gateway_metrics())
        for family in registry.collect()
        for sample in family.samples
    ]
    names = {sample.name for sample in samples}
    labels = {label for sample in samples for label in sample.labels}
    asked = list(expressions())
    assert {name for expression in asked for name in METRIC.findall(expression)} <= names
    grouped = re.findall(r"by \(([^)]*)\)", " ".join(asked))
    assert {label.strip() for group in grouped for label in group.split(",")} <= labels
    assert set(re.findall(r"{{(\w+)}}", DASHBOARD.read_text())) <= labels


def test_the_dashboard_uses_the_provisioned_source_and_no_panel_is_over_another() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    (source,) = read_yaml(DEPLOY / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source["uid"]
            assert panel["targets"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


GROUP_OR_UNWELL = "{{ with $labels.consumergroup }}group?id={{ urlquery . }}{{ else }}?state=unwell{{ end }}"
"""Groups without series of their own have one together, which names none of them."""


def test_every_alert_says_how_urgent_it_is() -> None:
    assert {rule["labels"]["severity"] for rule in rules()} == {"critical", "warning"}
    urgent = {rule["alert"] for rule in rules() if rule["labels"]["severity"] == "critical"}
    assert {"CoordinatorDown", "RequestsDropped", "ReplicaDiffers"} <= urgent


@pytest.mark.parametrize(
    ("alert", "address"),
    [
        ("RebalanceStorm", "group?id={{ urlquery $labels.consumergroup }}"),
        ("PartitionsStuck", GROUP_OR_UNWELL),
        ("FallingBehind", GROUP_OR_UNWELL),
        ("PartitionsWithoutOwner", GROUP_OR_UNWELL),
        ("DuplicateClientId", GROUP_OR_UNWELL),
        ("RebalancingForLong", "?state=unwell"),
        ("GroupQuarantined", "?state=unwell"),
    ],
)
def test_alerts_about_groups_link_to_the_page_if_prometheus_knows_where_it_is(
    alert: str, address: str
) -> None:
    """`missingkey=zero` is Prometheus' own option of its templates: a label that is not there is empty."""
    (rule,) = [rule for rule in rules() if rule["alert"] == alert]
    page = rule["annotations"]["page"]
    assert page == "{{ with $externalLabels.page_url }}{{ . }}" + address + "{{ end }}"


def test_every_alert_that_names_a_group_links_to_it() -> None:
    names = [rule["alert"] for rule in rules() if "$labels.consumergroup" in rule["annotations"]["summary"]]
    assert names == [
        "RebalanceStorm",
        "PartitionsStuck",
        "FallingBehind",
        "PartitionsWithoutOwner",
        "SharePartitionsNotInitialized",
        "DuplicateClientId",
    ]


def test_the_alert_of_the_lead_comes_at_half_of_the_bounds() -> None:
    (ahead,) = [expression for expression in expressions() if "lead_bytes > " in expression]
    assert ahead == (
        f"group_coordinator_replica_lead_seconds > {LEAD_MAX_S / 2:.0f} "
        f"or group_coordinator_replica_lead_bytes > {LEAD_MAX_BYTES // 2}"
    )


@pytest.mark.parametrize(("reason", "exit_code"), [(None, 0), ("restarting: the query ended", 1)])
def test_the_health_check_tells_ready_from_not(
    reason: str | None, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = urlsplit(COORDINATOR["healthcheck"]["test"][-1]).path
    with HttpPort(LOOPBACK, 0, CollectorRegistry(), {path: lambda _: {"coordinator": reason}}) as http:
        assert healthcheck(http.url.replace("/metrics", path)) == exit_code
    assert str(reason or "") in capsys.readouterr().err


def test_the_health_check_says_in_one_line_that_nothing_answers() -> None:
    url = f"http://{LOOPBACK}:{free_port()}/readyz"
    ended = subprocess.run(
        [sys.executable, ROOT / "deploy" / "healthcheck.py", url], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"{url} does not answer: [Errno 111] Connection refused\n"


def test_the_image_takes_no_package_without_its_hash() -> None:
    installs = re.findall(r"^RUN pip install (.*)$", DOCKERFILE, re.MULTILINE)
    assert installs == [
        "--no-cache-dir --require-hashes --requirement /src/requirements.lock",
        "--no-cache-dir --no-deps --no-build-isolation /src",
    ]
