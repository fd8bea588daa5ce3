"""docker-compose.yml unchanged, by podman-compose: Kafka and the coordinator serve, and keep their data."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.deploy.consuming import commit_everything, committed, produce
from tests.deploy.podman import ROOT, Podman
from tests.e2e.harness import wait_until

pytestmark = pytest.mark.e2e

PROJECT = "group-coordinator-tests"
FILE = ROOT / "docker-compose.yml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
GATEWAY_PORT = 9192
START_TIMEOUT_S = 180
TIMEOUT_S = 300

Compose = Callable[..., str]


@pytest.fixture(scope="module")
def compose(podman: Podman, image: str, kafka_image: str) -> Iterator[Compose]:
    """Calls podman-compose with the images that are here under the names of the file."""
    if shutil.which("podman-compose") is None:
        pytest.skip("not on this machine: podman-compose")
    podman("tag", image, SERVICES["coordinator"]["image"])
    podman("tag", kafka_image, SERVICES["kafka"]["image"])

    def call(*words: str) -> str:
        done = subprocess.run(
            ["podman-compose", "--project-name", PROJECT, "--file", str(FILE), *words],
            env={**os.environ, **podman.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        yield call
    finally:
        call("down", "--volumes")
        podman("untag", image, SERVICES["coordinator"]["image"])
        podman("untag", kafka_image, SERVICES["kafka"]["image"])


def test_consumers_are_served_and_offsets_outlive_a_restart(podman: Podman, compose: Compose) -> None:
    coordinator = f"{PROJECT}_coordinator_1"

    # podman-compose 1.0 puts the words of a check together in a way that no shell takes apart again.
    _, *check = SERVICES["coordinator"]["healthcheck"]["test"]

    def is_healthy() -> bool:
        return podman.succeeds_in(coordinator, *check)

    compose("up", "--detach", "--no-build", "kafka", "coordinator")
    with podman.noting_logs(coordinator):
        wait_until(is_healthy, "the coordinator's health check passes", START_TIMEOUT_S)
        produce(GATEWAY_PORT, "orders", 10)
        assert commit_everything(GATEWAY_PORT, "orders", "g", 10) == 10
        compose("restart", "coordinator")
        wait_until(is_healthy, "the health check passes again", START_TIMEOUT_S)
        assert committed(GATEWAY_PORT, "orders", "g") == 10
