"""The process of the page that `run` starts."""

import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

from cli.page_child import PolledCluster
from cli.run import RunPage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.commands import CoordinatorLog
from tests.e2e.harness import child_pids, command_of, wait_until

START_TIMEOUT_S = 120.0  # beside other tests with a tenth of a core, a start takes half a minute
NOBODY = ClientConfig("127.0.0.1:1")  # the page says that no broker answers, and serves


def pages() -> list[int]:
    return [pid for pid in child_pids(os.getpid()) if "cli.page_child" in command_of(pid)]


def is_served(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def test_page_process_that_ends_is_restarted_at_the_same_address(tmp_path: Path) -> None:
    """It ends with the service, and nothing of it is left."""
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: a\nsecretKey: b\n")
    rocketmq = PolledCluster(("127.0.0.1:1",), str(keys), None)
    assert rocketmq.servers() == RocketMqServers(("127.0.0.1:1",), ("a", "b"))
    with RunPage(0) as page:
        log = CoordinatorLog.of(NOBODY, "/nowhere/coordinator")
        layout, nowhere = TopicLayout.named("page"), "http://127.0.0.1:1"
        page.start(NOBODY, layout, "127.0.0.1:9092", nowhere, log, rocketmq=rocketmq)
        wait_until(lambda: is_served(page.url), "the page", START_TIMEOUT_S)
        (first,) = pages()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(pages()) == 1 and pages() != [first], "another process", START_TIMEOUT_S)
        wait_until(lambda: is_served(page.url), "the page again", START_TIMEOUT_S)
    assert pages() == []
    assert not is_served(page.url)
