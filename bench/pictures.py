"""The pictures of README, from a real run: `python -m bench.pictures`, which takes some three minutes.

A broker, the coordinator with its page, and librdkafka's consumers: a worker of `orders` is killed again and
again, `billing` commits nothing, and `clickstream` (the consumer protocol) is well. It waits until the page
says so, and photographs it.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cli.demo.children import Child
from tests.harness.browser import browser

FOLDER = Path(__file__).parents[1] / "docs" / "plots"
PARTITIONS = 6
KILLED = 3
START_S, WAIT_S, LOOK_S = 180.0, 300.0, 0.5

CONSUMER = """
import sys
from confluent_kafka import Consumer
servers, group_id, topic, client_id, protocol, commits = sys.argv[1:]
times = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
consumer = Consumer({"bootstrap.servers": servers, "group.id": group_id, "client.id": client_id,
    "group.protocol": protocol, "auto.offset.reset": "earliest", "enable.auto.commit": commits == "commits",
    "auto.commit.interval.ms": 1000, **times})
consumer.subscribe([topic])
is_first = True
while True:
    message = consumer.poll(1.0)
    if is_first and message is not None and not message.error():
        consumer.commit(message)
        is_first = False
"""


def main() -> None:
    """Run the story, and write the pictures to docs/plots."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run = Child("run", ["run", "--json", "--data-dir", str(folder / "data")], folder / "run.log")
        stack.callback(run.stop)
        ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_S))
        stack.enter_context(producing(ready["broker"], ("orders", "payments", "clicks")))
        page = Page(ready["page"])
        start = Consumers(ready["gateway"], stack)
        for number in (1, 2):
            start("orders", "orders", f"worker-{number}")
            start("clickstream", "clicks", f"clicker-{number}", protocol="consumer")
        start("billing", "payments", "biller-1", commits=False)
        page.wait_until(lambda: page.members("orders") == 2, "two workers")
        for _ in range(KILLED):
            victim = start("orders", "orders", "worker-3")
            page.wait_until(lambda: page.members("orders") == 3, "three workers")
            victim.send_signal(signal.SIGKILL)
            page.wait_until(lambda: page.members("orders") == 2, "the end of the session")
        start("orders", "orders", "worker-3")
        page.wait_until(lambda: {"orders", "billing"} <= page.unwell(), "two groups that are unwell")
        with browser(folder / "browser", 1280, 640) as driver:
            for picture, path in (
                ("page-groups", ""),
                ("page-group", f"group?{urlencode({'id': 'orders'})}"),
            ):
                driver.get(page.url + path)
                driver.save_screenshot(str(FOLDER / f"{picture}.png"))
                print(FOLDER / f"{picture}.png")


class Page:
    """What the page says, by its JSON."""

    def __init__(self, url: str) -> None:
        self.url = url

    def members(self, group_id: str) -> int:
        return next((int(g["members"]) for g in self._groups()["groups"] if g["group_id"] == group_id), 0)

    def unwell(self) -> set[str]:
        return {group["group_id"] for group in self._groups()["unwell"]}

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Look again and again. Raises TimeoutError."""
        give_up_s = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"the page does not show {what}")
            time.sleep(LOOK_S)

    def _groups(self) -> dict[str, Any]:
        return self._json("groups")

    def _json(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}api/{path}", timeout=60) as response:
            found: dict[str, Any] = json.load(response)
        return found


class Consumers:
    """Starts consumers, each in a process of its own, which end with `stack`."""

    def __init__(self, servers: str, stack: ExitStack) -> None:
        self._servers = servers
        self._stack = stack

    def __call__(
        self, group_id: str, topic: str, client_id: str, *, protocol: str = "classic", commits: bool = True
    ) -> subprocess.Popen[bytes]:
        names = (self._servers, group_id, topic, client_id, protocol, "commits" if commits else "never")
        process = self._stack.enter_context(subprocess.Popen([sys.executable, "-c", CONSUMER, *names]))
        self._stack.callback(process.kill)
        return process


@contextmanager
def producing(servers: str, topics: tuple[str, ...]) -> Iterator[None]:
    """Make the topics, and write a record to each of their partitions twice a second."""
    admin = AdminClient({"bootstrap.servers": servers})  # it is alive until all are made
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
    for future in made.values():
        future.result()
    stopping = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": servers})
        while not stopping.wait(0.5):
            for topic in topics:
                for partition in range(PARTITIONS):
                    producer.produce(topic, b"record", partition=partition)
            producer.flush()

    thread = threading.Thread(target=produce, name="records")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


if __name__ == "__main__":
    main()
