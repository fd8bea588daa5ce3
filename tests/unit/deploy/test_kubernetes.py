"""deploy/kubernetes/: the manifests agree with each other and with the code. Nothing here runs them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from cli.gateway import gateway
from cli.run import run
from gateway import running
from kafka_why import __version__

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
UNITS_MIB = {"m": 1, "g": 1024, "Mi": 1, "Gi": 1024}
# Memory of a container beside that of its executor, in MiB: see "Sizing" in docs/spark-cluster.md.
BESIDE_AN_EXECUTOR_MIB = 1_024


def of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in DOCUMENTS if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def names(kind: str) -> set[str]:
    return {d["metadata"]["name"] for d in DOCUMENTS if d["kind"] == kind}


def workloads() -> list[dict[str, Any]]:
    found = [d for d in DOCUMENTS if d["kind"] in ("Deployment", "StatefulSet")]
    assert found
    return found


def containers() -> Iterator[dict[str, Any]]:
    for workload in workloads():
        yield from workload["spec"]["template"]["spec"]["containers"]


def pod_of(kind: str, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = of(kind, name)["spec"]["template"]["spec"]
    return pod


def container_of(kind: str, name: str) -> dict[str, Any]:
    (container,) = pod_of(kind, name)["containers"]
    found: dict[str, Any] = container
    return found


def mib(size: str) -> int:
    match = re.fullmatch(r"(\d+)([A-Za-z]+)", size)
    assert match, size
    return int(match[1]) * UNITS_MIB[match[2]]


def option(words: list[str], name: str) -> str:
    """Return the value of an option that is a word of its own."""
    return words[words.index(name) + 1]


COORDINATOR = container_of("StatefulSet", "coordinator")
POD_IP = "10.0.0.7"
# Kubernetes puts the value of a variable in the place of $(NAME).
ARGUMENTS = [word.replace("$(POD_IP)", POD_IP) for word in COORDINATOR["args"][1:]]
WORKER = container_of("Deployment", "spark-worker")
MASTER = container_of("Deployment", "spark-master")


def test_the_kustomization_has_every_file_and_the_projects_version() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    files = {path.name for path in FOLDER.glob("*.yaml")}
    assert {*kustomization["resources"], "kustomization.yaml"} == files
    assert kustomization["namespace"] in names("Namespace")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert kustomization["images"] == [{"name": project["name"], "newTag": __version__}]
    assert {container["image"] for container in containers()} == {f"{project['name']}:{__version__}"}


def test_workload_selects_its_own_pods_and_names_existing_objects() -> None:
    for workload in workloads():
        template = workload["spec"]["template"]
        selected = workload["spec"]["selector"]["matchLabels"]
        assert selected.items() <= template["metadata"]["labels"].items()
        assert template["spec"]["serviceAccountName"] in names("ServiceAccount")
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        claims = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in template["spec"].get("volumes", [])
            if "persistentVolumeClaim" in volume
        }
        assert claims <= names("PersistentVolumeClaim")
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes


def test_no_pod_has_more_rights_than_it_needs() -> None:
    """None asks Kubernetes for anything, none is root, and each has a bound of memory."""
    for workload in workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "SPARK_MASTER_PORT of a service would be taken for a port"
        assert pod["securityContext"]["runAsNonRoot"] is True
    for container in containers():
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_kubernetes_services_lead_to_ports_of_their_pods() -> None:
    for service in (d for d in DOCUMENTS if d["kind"] == "Service"):
        selected = service["spec"]["selector"]
        (workload,) = [
            w for w in workloads() if selected.items() <= w["spec"]["template"]["metadata"]["labels"].items()
        ]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]}.items() <= ports.items()


def test_kubernetes_probes_use_ports_and_paths_that_are_served() -> None:
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    found = [(it, it[name]) for it in containers() for name in kinds if name in it]
    assert len(found) >= 2 * len(workloads())
    for container, probe in found:
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert (probe.get("tcpSocket") or probe["httpGet"])["port"] in named
        if container["name"] in ("coordinator", "gateway"):
            path = urlsplit(probe["httpGet"]["path"])
            assert path.path in ("/healthz", "/readyz")
            assert path.query in ("", f"exclude={running.COORDINATOR}")


def test_a_gateway_may_drain_before_it_is_killed() -> None:
    _, *arguments = container_of("Deployment", "gateway")["args"]
    drain_s = gateway.make_context("gateway", arguments).params["drain_timeout_s"]
    assert pod_of("Deployment", "gateway")["terminationGracePeriodSeconds"] >= drain_s + 40


def test_coordinators_command_line_is_valid_and_names_the_spark_master() -> None:
    context = run.make_context("run", [*ARGUMENTS])
    assert COORDINATOR["args"][0] == run.name
    assert context.params["no_gateway"]
    assert context.params["metrics_port"] == COORDINATOR["ports"][0]["containerPort"]
    (port,) = [p["port"] for p in of("Service", "spark-master")["spec"]["ports"] if p["name"] == "spark"]
    assert context.params["master"] == WORKER["command"][-1] == f"spark://spark-master:{port}"
    assert option(MASTER["command"], "--port") == str(port)
    assert context.params["driver_host"] == POD_IP
    for container in (COORDINATOR, WORKER, MASTER):
        assert "POD_IP" in {variable["name"] for variable in container["env"]}
    replicas = of("Deployment", "spark-worker")["spec"]["replicas"]
    assert context.params["state_partitions"] == replicas * int(option(WORKER["command"], "--cores"))


def test_executors_share_the_single_drivers_checkpoint() -> None:
    assert of("StatefulSet", "coordinator")["spec"]["replicas"] == 1
    (data_dir,) = [w.partition("=")[2] for w in COORDINATOR["args"] if w.startswith("--data-dir=")]
    claims = set()
    for pod, container in (
        (pod_of("StatefulSet", "coordinator"), COORDINATOR),
        (pod_of("Deployment", "spark-worker"), WORKER),
    ):
        (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == data_dir]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
        claims.add(volume["persistentVolumeClaim"]["claimName"])
    (claim,) = claims
    assert of("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]


def test_executor_fits_its_worker_and_the_worker_fits_its_container() -> None:
    executor_mib = mib(run.make_context("run", [*ARGUMENTS]).params["spark"]["spark.executor.memory"])
    assert executor_mib <= mib(option(WORKER["command"], "--memory"))
    (daemon_mib,) = [mib(v["value"]) for v in WORKER["env"] if v["name"] == "SPARK_DAEMON_MEMORY"]
    limit_mib = mib(WORKER["resources"]["limits"]["memory"])
    assert executor_mib + BESIDE_AN_EXECUTOR_MIB + daemon_mib <= limit_mib


def test_clients_find_the_gateway_for_each_broker() -> None:
    container = container_of("Deployment", "gateway")
    command, *arguments = container["args"]
    assert command == gateway.name
    context = gateway.make_context(command, arguments)
    assert context.params["advertised_host"] in names("Service")
    first, *brokers, metrics = [port["containerPort"] for port in container["ports"]]
    assert metrics == context.params["metrics_port"]
    assert first == context.params["listen"].port
    assert brokers == [first + 1 + node for node in range(len(brokers))]
    given = [word for word in container["args"] if word.startswith("--bootstrap-servers=")]
    assert given[0] in COORDINATOR["args"], "both on one cluster"
