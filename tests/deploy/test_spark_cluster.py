"""Master, worker and driver of a Spark cluster, each a container of the coordinator's image."""

import json
import time
import urllib.error
import urllib.request

import pytest

from tests.deploy.podman import Podman
from tests.e2e.harness import wait_until
from tests.harness.ports import free_port

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 240
# In which Prometheus must have found the driver's port: less than the alert `CoordinatorDown` waits.
SCRAPED_WITHIN_S = 40


def answer(url: str) -> tuple[int, str]:
    """Return the HTTP status and the text. The status is 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError as error:
        return 0, str(error)


def test_driver_started_before_its_master_waits_for_it(podman: Podman, image: str, kafka: str) -> None:
    """Meanwhile its port reports what it waits for. In the end it runs on the cluster."""
    port = free_port()
    driver = (
        *(
            f"--network={kafka}",
            "--hostname=driver",
            "--network-alias=driver",
            f"--publish=127.0.0.1:{port}:9404",
        ),
        *(image, "run", "--json", "--no-gateway", "--no-page", "--bootstrap-servers=kafka:9092"),
        *("--master=spark://spark-master:7077", "--driver-host=driver", "--state-partitions=1"),
        *("--data-dir=/var/lib/group-coordinator", "--metrics-host=0.0.0.0", "--metrics-port=9404"),
        *("--prefix=on-a-cluster", "--spark-conf=spark.executor.memory=1g"),
    )
    began_s = time.monotonic()
    with podman.container(*driver):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answer(f"{url}/readyz")[0] == 503, "the driver's port", START_TIMEOUT_S)
        assert time.monotonic() - began_s < SCRAPED_WITHIN_S
        assert 'group_coordinator_phase{phase="starting"} 1.0' in answer(f"{url}/metrics")[1]
        shared = (f"--network={kafka}", "--entrypoint=spark-class")
        master = "org.apache.spark.deploy.master.Master"
        with podman.container(
            *(*shared, "--network-alias=spark-master", "--hostname=spark-master", image),
            *(master, "--host", "spark-master", "--port", "7077"),
        ):
            worker = "org.apache.spark.deploy.worker.Worker"
            with podman.container(
                *(*shared, image, worker, "--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work"),
                "spark://spark-master:7077",
            ):
                wait_until(lambda: answer(f"{url}/readyz")[0] == 200, "the driver is ready", START_TIMEOUT_S)
                assert json.loads(answer(f"{url}/readyz")[1])["ok"]
