"""docker-compose.yml and deploy/: the checks that need no Docker."""

import json
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kafka.protocol.api_key import ApiKey
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client import CollectorRegistry

from deploy.healthcheck import main as healthcheck
from gateway.metrics.collector import GatewayCollector
from gateway.metrics.numbers import FAMILIES, GatewayCounts, counter_numbers
from kafka_why import __version__
from kafka_why.metrics.http import HttpPort
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
    """Return an option of the coordinator's command line."""
    (value,) = [word.partition("=")[2] for word in COORDINATOR["command"] if word.startswith(f"--{name}=")]
    return str(value)


def published(service: str) -> tuple[str, int, int]:
    """Address and port on the host, and port in the container, of the first published port."""
    address, host_port, container_port = SERVICES[service]["ports"][0].split(":")
    return address, int(host_port), int(container_port)


def rules() -> list[dict[str, Any]]:
    """Return all rules of the alerts."""
    return [rule for group in read_yaml(DEPLOY / "alerts.yml")["groups"] for rule in group["rules"]]


def shown() -> list[str]:
    """Return all PromQL expressions of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def expressions() -> Iterator[str]:
    """Return all PromQL expressions of the dashboard and of the alerts."""
    yield from shown()
    yield from (rule["expr"] for rule in rules())


def test_compose_image_versions_are_those_of_the_project() -> None:
    jars = tomllib.loads((ROOT / "embedded" / "jars.toml").read_text())
    (broker,) = (a for a in jars["broker"]["artifacts"] if a.startswith("org.apache.kafka:"))
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{broker.rpartition(':')[2]}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert COORDINATOR["image"] == f"{project['name']}:{__version__}"


def test_compose_publishes_ports_to_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert {port.split(":")[0] for port in ports} == {"127.0.0.1"}


def test_compose_ports_match_from_the_coordinator_to_the_dashboard() -> None:
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


def gateway_metrics() -> CollectorRegistry:
    """Return the metrics of a gateway that has counted one of everything."""
    counts = GatewayCounts()
    counts.answered[ApiKey.Heartbeat].add(0.1)
    counts.coordinator["Heartbeat"].add(0.1)
    counts.errors[ApiKey.Heartbeat, 15] += 1
    counts.refused["max.connections"] += 1
    counts.throttled[ApiKey.Heartbeat] += 1
    gauges = {name: {("",) * len(f.labels): [1.0]} for name, f in FAMILIES.items() if f.kind == "gauge"}
    registry = CollectorRegistry()
    registry.register(GatewayCollector(lambda: {**counter_numbers(counts), **gauges}))
    return registry


def test_dashboard_and_alerts_use_only_metrics_and_labels_that_are_served() -> None:
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


GROUP_OR_UNWELL = "{{ with $labels.consumergroup }}group?id={{ urlquery . }}{{ else }}?state=unwell{{ end }}"
"""Groups without series of their own have one together, which names none of them."""


def test_group_alerts_link_to_the_groups_page_if_prometheus_knows_its_url() -> None:
    """`missingkey=zero` is Prometheus' own option of its templates: a label that is not there is empty."""
    of_groups = [
        rule["alert"] for rule in rules() if "$labels.consumergroup" in rule["annotations"]["summary"]
    ]
    addresses = {
        **dict.fromkeys(of_groups, GROUP_OR_UNWELL),
        "RebalanceStorm": "group?id={{ urlquery $labels.consumergroup }}",
        **dict.fromkeys(("RebalancingForLong", "GroupQuarantined"), "?state=unwell"),
    }
    assert len(addresses) == 9
    assert {rule["alert"]: page for rule in rules() if (page := rule["annotations"].get("page"))} == {
        alert: "{{ with $externalLabels.page_url }}{{ . }}" + address + "{{ end }}"
        for alert, address in addresses.items()
    }


@pytest.mark.parametrize(("reason", "exit_code"), [(None, 0), ("restarting: the query ended", 1)])
def test_health_check_exit_code_reports_readiness(
    reason: str | None, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = urlsplit(COORDINATOR["healthcheck"]["test"][-1]).path
    with HttpPort(LOOPBACK, 0, CollectorRegistry(), {path: lambda _: {"coordinator": reason}}) as http:
        assert healthcheck(http.url.replace("/metrics", path)) == exit_code
    assert str(reason or "") in capsys.readouterr().err


def test_image_installs_only_packages_with_a_hash() -> None:
    installs = re.findall(r"^RUN pip install ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    hashed, own = (install.split() for install in installs)
    assert {"--require-hashes", "/src/requirements.lock"} <= set(hashed)
    assert own == ["--no-cache-dir", "--no-deps", "--no-build-isolation", "/src/kafka_why", "/src"]


PROJECT, EXPLAINER = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "kafka_why")
)
LOCKS = ("requirements.lock", "requirements-dev.lock")
ENTRY = re.compile(r"^(\S+==[^\\]+?) \\$((?:\n +--hash=sha256:[0-9a-f]{64}(?: \\)?$)+)", re.MULTILINE)


def locked(name: str) -> dict[str, Requirement]:
    """Return the requirements of a lock by name. Asserts that each has a hash."""
    text = (ROOT / name).read_text()
    found = [Requirement(match[1]) for match in ENTRY.finditer(text)]
    assert found
    assert len(found) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), (
        "each line is a package with its hashes"
    )
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def wanted(name: str) -> list[Requirement]:
    """Return the direct requirements of both distributions and of their build."""
    extras = EXPLAINER["project"]["optional-dependencies"].values()
    texts = [*EXPLAINER["project"]["dependencies"], *chain(*extras), *PROJECT["build-system"]["requires"]]
    texts += [text for text in PROJECT["project"]["dependencies"] if not text.startswith("kafka-why")]
    if name == "requirements-dev.lock":
        texts += PROJECT["project"]["optional-dependencies"]["dev"]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_satisfies_the_projects_requirements(name: str) -> None:
    pins = locked(name)
    for requirement in wanted(name):
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement}: run `make lock`"


def test_installed_packages_match_the_lock() -> None:
    for name, pin in locked("requirements-dev.lock").items():
        if pin.marker is None or pin.marker.evaluate():
            assert pin.specifier.contains(metadata.version(name)), pin


def test_setup_installs_only_packages_with_a_hash() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    recipes = re.findall(r"^\$\((?:UV_BIN|PACKAGES)\):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    installs = [line for recipe in recipes for line in recipe.splitlines() if "pip install" in line]
    packages, own, uv = installs
    assert "--require-hashes --requirement requirements-dev.lock" in packages
    assert "--no-deps --no-build-isolation --editable kafka_why --editable ." in own
    assert "--require-hashes --requirement requirements-uv.lock" in uv
