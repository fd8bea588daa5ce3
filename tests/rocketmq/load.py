"""RocketMQ's Java clients under load: a producer, and in two JVMs a push consumer and an orderly one."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from embedded.rocketmq import EmbeddedRocketMq
from kafka_why.lifetimes import Closeable
from tests.harness.rocketmq_clients import (
    JavaClient,
    JavaClientFailed,
    JavaClients,
    Received,
    RocketMqCluster,
    address_of,
)
from tests.harness.waiting import wait_until

PUSH, ORDERLY = "push", "orderly"
GROUPS = (PUSH, ORDERLY)
QUEUES = 6
PAUSE_S = 0.05
MACHINES = 2
TIMEOUT_S = 180.0
"""A client asks its name server for routes each 30 s only, and a lock that nobody renews lasts 60 s."""


class Machine:
    """A JVM with a consumer of each group. It can be killed and started again."""

    def __init__(self, name: str, name_server: str, topic: str, folder: Path) -> None:
        self.name = name
        self._name_server, self._topic, self._folder = name_server, topic, folder
        self._lives: list[tuple[JavaClients, dict[str, JavaClient]]] = []

    @property
    def pid(self) -> int:
        return self._lives[-1][0].pid

    def start(self) -> None:
        """Start the JVM and its consumers, which have the client ids of the ones before them."""
        jvm = JavaClients(self._name_server, self._folder / f"{self.name}-{len(self._lives)}")
        consumers: dict[str, JavaClient] = {}
        self._lives.append((jvm, consumers))
        for group in GROUPS:
            consumers[group] = jvm.push(
                group, self._topic, orderly=group == ORDERLY, name=f"{self.name}-{group}"
            )

    def kill(self) -> None:
        """SIGKILL: no consumer leaves its group."""
        jvm, _ = self._lives[-1]
        jvm.kill()
        jvm.close()

    def held(self, group: str) -> frozenset[str]:
        """Return the queues that its consumer of a group holds now."""
        return self._lives[-1][1][group].held

    def received(self, group: str) -> Iterator[Received]:
        """Yield what its consumers of a group have received, the newest first."""
        for _, consumers in reversed(self._lives):
            if group in consumers:
                yield from reversed(list(consumers[group].received))


class Load(Closeable):
    """Numbered messages to all queues of a topic, one each PAUSE_S, and their consumers.

    `name_server` is the namesrvAddr of all clients. Times are monotonic, in seconds.
    """

    def __init__(self, cluster: EmbeddedRocketMq, name_server: str, folder: Path) -> None:
        self.sent: dict[int, tuple[float, float]] = {}
        """When each message was sent, and when it was acknowledged."""
        self.number = 0
        """Number of the next message."""
        self.refused: Counter[str] = Counter()
        """Failed sends by their error: nobody knows whether the message is there."""
        with ExitStack() as stack:
            admin = stack.enter_context(RocketMqCluster(address_of(cluster), folder / "producer"))
            self._topic = admin.create_topic(QUEUES)
            self._producer = admin.clients.producer(name_server=name_server)
            self.machines = [
                Machine(f"machine-{number}", name_server, self._topic, folder) for number in range(MACHINES)
            ]
            for machine in self.machines:
                machine.start()
                stack.callback(machine.kill)
            self._is_over = threading.Event()
            self._sender = threading.Thread(target=self._send, name="sender")
            stack.callback(self.stop_sending)
            self._sender.start()
            self._stack = stack.pop_all()

    def stop_sending(self) -> None:
        """Send no more, and wait for the end of the last send."""
        self._is_over.set()
        self._sender.join()

    def close(self) -> None:
        """Kill the consumers, too."""
        self._stack.close()

    def received(self, group: str) -> list[Received]:
        """Return what a group has received, in order."""
        return sorted(
            (message for machine in self.machines for message in machine.received(group)),
            key=lambda message: message.at_s,
        )

    def wait_for_progress(self, held: Machine | None = None, timeout_s: float = TIMEOUT_S) -> float:
        """Wait until the consumers hold each queue once, and each group has received a new message of each
        queue. Return the seconds. Raises AssertionError. Consumers of the paused JVM `held` do not count.
        """
        since_s, first = time.monotonic(), self.number
        others = [machine for machine in self.machines if machine is not held]
        wait_until(
            lambda: all(_is_shared(group, others) and self._read(group, first) == QUEUES for group in GROUPS),
            "a new message of each queue at each group",
            timeout_s,
        )
        return time.monotonic() - since_s

    def missing(self, group: str) -> set[int]:
        """Return the numbers of the acknowledged messages that a group has not received."""
        bodies = {int(message.body) for machine in self.machines for message in machine.received(group)}
        return self.sent.keys() - bodies

    def _read(self, group: str, first: int) -> int:
        """Return from how many queues a group has received messages with numbers from `first` on."""
        queues = set()
        for machine in self.machines:
            for message in machine.received(group):
                if int(message.body) < first - 10 * QUEUES:
                    break
                if int(message.body) >= first:
                    queues.add(message.queue)
        return len(queues)

    def _send(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            at_s = time.monotonic()
            try:
                self._producer.send(self._topic, [str(self.number)])
                self.sent[self.number] = at_s, time.monotonic()
            except (JavaClientFailed, TimeoutError) as error:
                self.refused[str(error)[:200]] += 1
            self.number += 1


def _is_shared(group: str, machines: Sequence[Machine]) -> bool:
    held = [queue for machine in machines for queue in machine.held(group)]
    return len(held) == QUEUES == len(set(held))
