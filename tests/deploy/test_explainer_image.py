"""The image of kafka-why: it is small, and `groups list` works at a cluster without our topics."""

import json
import re

import pytest

from tests.deploy.podman import NAME, ROOT, Podman
from tests.e2e.harness import wait_until

pytestmark = pytest.mark.e2e

IMAGE = f"{NAME}/kafka-why:latest"
ADDED_MAX_BYTES = 80_000_000


@pytest.fixture(scope="module")
def explainer(podman: Podman) -> tuple[str, str]:
    """Return the image, and the one that it is based on."""
    dockerfile = ROOT / "deploy" / "kafka-why.Dockerfile"
    match = re.search(r"^FROM (\S+) AS base$", dockerfile.read_text(), re.MULTILINE)
    assert match is not None
    base = podman.base(match[1])
    podman.build(dockerfile, IMAGE, ROOT, "--from", base)
    return IMAGE, base


def test_kafka_why_image_is_small_and_runs_without_root(podman: Podman, explainer: tuple[str, str]) -> None:
    found, base = (json.loads(podman("image", "inspect", name))[0] for name in explainer)
    assert found["Size"] - base["Size"] <= ADDED_MAX_BYTES
    assert found["Config"]["User"] == "why"


def test_kafka_why_image_lists_groups_of_a_cluster_without_coordinator_topics(
    podman: Podman, explainer: tuple[str, str], kafka: str
) -> None:
    restricted = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
    words = ("groups", "list", "--bootstrap-servers=kafka:9092", "-o", "json")

    def listed() -> bool:
        done = podman.tried("run", "--rm", *restricted, f"--network={kafka}", explainer[0], *words)
        return done.returncode == 0 and json.loads(done.stdout) == []

    wait_until(listed, "the broker's answer", 60)
