"""The coordinator's image: its files, and that it runs with few rights."""

import json

import pytest

from tests.deploy.consuming import commit_everything, produce
from tests.deploy.podman import Podman
from tests.e2e.harness import wait_until
from tests.harness.ports import gateway_port

pytestmark = pytest.mark.e2e

IMAGE_MAX_BYTES = 1_700_000_000
START_TIMEOUT_S = 180
SHARED_CLASSES = 5_000
BROKERS_JARS = ("kafka_2.13-", "kafka-server-", "kafka-group-coordinator-", "kafka-metadata-")
# What a Pod of Kubernetes' strictest standard may do.
RESTRICTED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--memory=2g")
CLASSES = "/tmp/classes"


@pytest.fixture(scope="module")
def files(podman: Podman, image: str) -> list[str]:
    words = ("--rm", "--user=root", "--entrypoint=find", image)
    return podman("run", *words, "/", "-xdev", "-type", "f").splitlines()


def test_image_contains_no_broker_source_or_build_files(files: list[str]) -> None:
    jars = [path.rpartition("/")[2] for path in files if path.endswith(".jar")]
    assert any(jar.startswith("kafka-clients-") for jar in jars)
    assert [jar for jar in jars if jar.startswith(BROKERS_JARS)] == []
    assert sorted(jars) == sorted(set(jars)), "each jar is there once"
    (core,) = [path for path in files if path.endswith("/state/dispatch.py")]
    assert core.startswith("/opt/group-coordinator/lib/")
    for part in (
        "/.cache/",
        "/.ivy2",
        "/build/lib/",
        "/spark_group_coordinator.egg-info/",
        "/site-packages/pandas/tests/",
        "/site-packages/pyarrow/src/",
    ):
        assert [path for path in files if part in path] == []
    assert [path for path in files if path.startswith("/src/")] == [], "the source"


def test_image_size_is_bounded_and_it_runs_as_an_ordinary_user(podman: Podman, image: str) -> None:
    (found,) = json.loads(podman("image", "inspect", image))
    assert found["Size"] <= IMAGE_MAX_BYTES, f"{found['Size']:,} bytes"
    assert found["Config"]["User"] == "coordinator"


def test_image_serves_with_few_rights_and_stops_gracefully(podman: Podman, image: str, kafka: str) -> None:
    port = gateway_port()
    options = (
        *RESTRICTED,
        "--tmpfs=/tmp",
        f"--network={kafka}",
        *(f"--publish=127.0.0.1:{number}:{number}" for number in (port, port + 2)),
        # Each class that a JVM loads, and from where.
        f"--env=JAVA_TOOL_OPTIONS=-Xlog:class+load=info:file={CLASSES}",
    )
    arguments = (
        *("run", "--json", "--no-page", "--bootstrap-servers=kafka:9092"),
        *("--data-dir=/var/lib/group-coordinator", "--metrics-host=0.0.0.0", "--metrics-port=9404"),
        *(f"--gateway=0.0.0.0:{port}", "--advertised-host=127.0.0.1"),
    )
    with podman.container(*options, image, *arguments) as container:
        wait_until(lambda: podman.is_healthy(container), "a health check that passes", START_TIMEOUT_S)
        produce(port, "orders", 10)
        assert commit_everything(port, "orders", "g", 10) == 10
        loaded = podman("exec", container, "grep", "--count", "shared objects file (top)", CLASSES)
        assert int(loaded) > SHARED_CLASSES, "the archive of Spark's classes is used"
        podman("kill", "--signal", "TERM", container)
        assert podman("wait", container).strip() == "0"
