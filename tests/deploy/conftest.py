"""The images, built once. Without Podman these tests are skipped."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from embedded.jars import jar_paths
from tests.deploy.podman import IMAGE, KAFKA, NEEDED, ROOT, Podman

_KAFKA_FILE = f"""
FROM {IMAGE}
USER root
COPY libs /opt/kafka/libs
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
COPY start.py /
RUN chmod +x /opt/kafka/bin/* && install --directory --owner=coordinator /var/lib/kafka/data
USER coordinator
HEALTHCHECK NONE
ENTRYPOINT ["python", "/start.py"]
"""


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    return Podman(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    """Return the coordinator's image."""
    dockerfile = ROOT / "deploy" / "Dockerfile"
    match = re.search(r"^FROM (\S+) AS base$", dockerfile.read_text(), re.MULTILINE)
    assert match is not None
    podman.build(dockerfile, IMAGE, ROOT, "--from", podman.base(match[1]))
    return IMAGE


@pytest.fixture(scope="session")
def kafka_image(podman: Podman, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a stand-in for Kafka's own image, with the same settings by the same variables."""
    folder: Path = tmp_path_factory.mktemp("kafka")
    (folder / "libs").mkdir()
    for jar in {jar.name: jar for jar in (*jar_paths("broker"), *jar_paths("tools"))}.values():
        shutil.copy(jar, folder / "libs")
    shutil.copy(Path(__file__).with_name("kafka_start.py"), folder / "start.py")
    script = (
        '#!/bin/sh\nexec java -cp "/opt/kafka/libs/*" org.apache.kafka.tools.BrokerApiVersionsCommand "$@"\n'
    )
    (folder / "kafka-broker-api-versions.sh").write_text(script)
    (folder / "Dockerfile").write_text(_KAFKA_FILE)
    podman.build(folder / "Dockerfile", KAFKA, folder)
    return KAFKA


@pytest.fixture(scope="session")
def kafka(podman: Podman, kafka_image: str) -> Iterator[str]:
    """Yield the name of a network in which a broker is `kafka:9092`, as in docker-compose.yml."""
    network = f"group-coordinator-{uuid4()}"
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    variables = [f"--env={k}={v}" for k, v in compose["services"]["kafka"]["environment"].items()]
    podman("network", "create", network)
    try:
        with podman.container(f"--network={network}", "--network-alias=kafka", *variables, kafka_image):
            yield network
    finally:
        podman("network", "rm", "--force", network)
