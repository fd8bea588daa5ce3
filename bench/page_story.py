"""The parts of a real run for the pictures of the docs: killable consumers, a producer, and pages."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cli.processes.child import Child
from streaming.observing.service import DEFAULT_PREFIX

PARTITIONS = 6
START_S, WAIT_S, CLOCK_POLL_S = 180.0, 300.0, 0.5

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


def observing(stack: ExitStack, folder: Path, servers: str, *options: str) -> str:
    """Start an observer with these options, and a page of its topics. Return the page's address."""
    at_broker = ("--bootstrap-servers", servers)
    observe = Child(
        "observe", ["observe", *at_broker, "--data-dir", str(folder), *options], folder / "observe.log"
    )
    stack.callback(observe.stop)
    observe.wait_for_line(lambda line: line.startswith(("ready:", "no group has joined")), START_S)
    page = Child("page", ["page", *at_broker, "--prefix", DEFAULT_PREFIX], folder / "page.log")
    stack.callback(page.stop)
    return page.wait_for_line(lambda line: line.startswith("ready: "), START_S).removeprefix("ready: ")


class Page:
    """The content of the page, from its JSON."""

    def __init__(self, url: str) -> None:
        self.url = url

    def members(self, group_id: str) -> int:
        return next((int(g["members"]) for g in self._groups()["groups"] if g["group_id"] == group_id), 0)

    def has_offsets(self, group_id: str) -> bool:
        """Return True if the page shows a lag of the group, and so has an offset of it."""
        return any(
            g["group_id"] == group_id and g["lag_records"] is not None for g in self._groups()["groups"]
        )

    def unwell(self) -> set[str]:
        """Return the ids of the groups that the page shows as unwell."""
        return {group["group_id"] for group in self._groups()["unwell"]}

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until the condition holds. Raises TimeoutError."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the page does not show {what}")
            time.sleep(CLOCK_POLL_S)

    def _groups(self) -> dict[str, Any]:
        return self._json("groups")

    def _json(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}api/{path}", timeout=60) as response:
            content: dict[str, Any] = json.load(response)
        return content


class Consumers:
    """A function that starts a consumer in its own process and returns the process. `stack` ends them all."""

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
    """Create the topics, and write a record to each partition twice a second until the block ends."""
    admin = AdminClient({"bootstrap.servers": servers})  # referenced until all topics exist
    creations = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics])
    for future in creations.values():
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
