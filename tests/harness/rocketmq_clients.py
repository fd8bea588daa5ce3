"""A real RocketMQ cluster, RocketMQ's own Java clients, many in one JVM, and mqadmin."""

import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from embedded.jars import SetName, jar_paths
from embedded.java import QUICK_COMPILER, find_java
from embedded.rocketmq import BrokerNode, EmbeddedRocketMq
from kafka_why.lifetimes import Closeable
from tests.harness.java_tools import ReportingProgram, classpath_options, compiled
from tests.harness.waiting import wait_until

HARNESS = Path(__file__).with_name("rocketmq_clients.java")
MAIN_CLASS = "RocketMqClients"
_ANSWER_TIMEOUT_S = 60.0
_NS_PER_S = 1e9
_NONE: Mapping[str, Any] = MappingProxyType({})


class JavaClientFailed(RuntimeError):
    """A call of RocketMQ's client raised an exception. The message is its class and text."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code
        """The response code of the broker or of the client, if the exception has one."""


@dataclass(frozen=True)
class Received:
    """A message at a consumer. `queue` is ``broker:number``, `times` the number of redeliveries."""

    at_s: float
    topic: str
    queue: str
    offset: int
    body: str
    times: int
    message_id: str


class JavaClient:
    """A client in the JVM. `name` is the instance name in its client id.

    The times are those of the JVM, whose clock is that of time.monotonic.
    """

    def __init__(self, name: str, jvm: "JavaClients", arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.held: frozenset[str] = frozenset()
        """The queues that a consumer holds (an orderly one: has locked), as ``broker:number``."""
        self.received: list[Received] = []
        self.checks: list[str] = []
        """The bodies of the messages whose transactions the broker has checked."""
        self._jvm = jvm
        self._arguments = dict(arguments)

    @property
    def bodies(self) -> list[str]:
        """The bodies of the received messages, in order."""
        return [message.body for message in list(self.received)]

    def start(self) -> "JavaClient":
        """Start the client, and wait until its `start` returns. Raises JavaClientFailed."""
        self._jvm.call(client=self.name, **self._arguments)
        return self

    def send(
        self,
        topic: str,
        bodies: Iterable[str],
        *,
        tags: str = "",
        message_properties: Mapping[str, str] = _NONE,
        shard: int | None = None,
        transaction: str | None = None,
    ) -> list[str]:
        """Send messages one by one, and return their queues. With `shard` all go to one queue.

        `transaction` is the state that the producer reports first (``UNKNOW``, ``COMMIT_MESSAGE`` ...).
        """
        optional = {"shard": shard, "transaction": transaction}
        queues: list[str] = self._call(
            "send",
            topic=topic,
            bodies=list(bodies),
            tags=tags,
            message_properties=dict(message_properties),
            **{name: value for name, value in optional.items() if value is not None},
        )
        return queues

    def request(self, topic: str, body: str) -> str:
        """Send a message, and return the body of the reply of its consumer."""
        reply: str = self._call("request", topic=topic, body=body)
        return reply

    def clients_of(self, group: str, broker: str) -> list[str]:
        ids: list[str] = self._call("clients-of", group=group, broker=broker)
        return ids

    def brokers_of(self, topic: str) -> dict[str, str]:
        """Return the addresses of the brokers that the name server has for a topic, by ``name/id``."""
        addresses: dict[str, str] = self._call("brokers-of", topic=topic)
        return addresses

    def create_topic(self, topic: str, queues: int, broker: str) -> None:
        self._call("create-topic", topic=topic, queues=queues, broker=broker)

    def stop(self) -> None:
        """Shut the client down, and wait for that."""
        self._call("stop")

    def _call(self, what: str, **arguments: Any) -> Any:
        return self._jvm.call(do=what, client=self.name, **arguments)

    def handle_event(self, event: Mapping[str, Any]) -> None:
        """Handle an event that the JVM has reported."""
        at_s = event["at_ns"] / _NS_PER_S
        if event["event"] == "queues":
            self.held = frozenset(event["queues"])
        elif event["event"] == "check":
            self.checks.append(event["body"])
        else:
            fields = ("topic", "queue", "offset", "body", "times", "message_id")
            self.received.append(Received(at_s, *(event[name] for name in fields)))


class JavaClients(ReportingProgram):
    """A JVM with clients of the cluster at this name server. Its logs and local offsets are in `folder`.

    `jars` may be those of an older version. `java_options` are further options of the JVM.
    """

    def __init__(
        self, name_server: str, folder: Path, *, jars: SetName = "rocketmq", java_options: Sequence[str] = ()
    ) -> None:
        self.name_server = name_server
        self._clients: dict[str, JavaClient] = {}
        self._answers: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        paths = jar_paths(jars)
        classpath = ":".join(map(str, (compiled([HARNESS], classpath_options(paths)), *paths)))
        options = [QUICK_COMPILER, "-XX:+UseSerialGC", "-Xmx256m", f"-Duser.home={folder}", *java_options]
        with (folder / "clients.log").open("a") as errors:
            super().__init__([str(find_java()), *options, "-cp", classpath, MAIN_CLASS], errors, folder)

    def push(self, group: str, topic: str, **settings: Any) -> JavaClient:
        """Start a push consumer from the first offset on.

        In `settings`, `tags` or `sql` is the filter. `orderly`, `circle` (the strategy) and `replies` (answer
        each message, for `request`) are booleans. `failures` is how often each message fails at first. All
        clients accept `name`, `name_server`, `access_key`, `secret_key`, and `properties` by their Java
        names.
        """
        return self._start("start-push", group=group, topic=topic, **settings)

    def lite_pull(self, group: str, topic: str, **settings: Any) -> JavaClient:
        """Start a DefaultLitePullConsumer that polls, from the first offset on."""
        return self._start("start-lite-pull", group=group, topic=topic, **settings)

    def producer(self, group: str = "producers", **settings: Any) -> JavaClient:
        """Start a producer."""
        return self._start("start-producer", group=group, **settings)

    def transactions(self, group: str, checked: str, **settings: Any) -> JavaClient:
        """Start a producer of transactions. `checked` is its answer to the broker's checks."""
        return self._start("start-transactions", group=group, checked=checked, **settings)

    def mqadmin(self, command: str, *arguments: str, name_server: str | None = None) -> str:
        """Return the output of mqadmin, which reports errors only there."""
        words = [command, "-n", name_server or self.name_server, *arguments]
        output: str = self.call(do="mqadmin", arguments=words)
        return output

    def call(self, **command: Any) -> Any:
        """Execute a command, and return its result. Raises JavaClientFailed."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answer
            self.command(json.dumps({"id": number, **command}))
        return answer.result(_ANSWER_TIMEOUT_S)

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Shut down the clients that start in the block when it ends, because each costs processor time."""
        earlier_clients = [*self._clients]
        yield
        self.call(do="stop-all-but", names=earlier_clients)

    def kill(self) -> None:
        """End the JVM with SIGKILL, so that no client leaves its group."""
        self._jvm.kill()

    @property
    def pid(self) -> int:
        return self._jvm.pid

    def handle_line(self, line: str) -> None:
        event = json.loads(line)
        if "id" not in event:
            return self._clients[event["client"]].handle_event(event)
        answer = self._answers.pop(event["id"])
        if "error" in event:
            answer.set_exception(JavaClientFailed(event["error"], event.get("code")))
        else:
            answer.set_result(event.get("result"))

    def on_end(self) -> None:
        for answer in self._answers.values():
            answer.set_exception(JavaClientFailed("the JVM has ended", None))

    def _start(self, what: str, *, name: str | None = None, **settings: Any) -> JavaClient:
        # Clients of two JVMs must not have one id.
        name = name or f"client-{self.pid}-{next(self._numbers)}"
        arguments = {"do": what, "name_server": self.name_server, "tags": "*", "properties": {}, **settings}
        client = self._clients[name] = JavaClient(name, self, arguments)
        return client.start()


QUEUES = 7
"""The number of queues of a test's topic at each broker."""

# Tests create their topics. Checks of transactions and retries of messages come soon.
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "autoCreateTopicEnable": "false",
        "transactionCheckInterval": "3000",
        "transactionTimeOut": "1000",
        "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
        # By default a broker refuses a message that has waited for 200 ms, as it does on a busy machine.
        "waitTimeMillsInSendQueue": "10000",
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
        # A flush is a third of the processor time of a broker without clients.
        "timerFlushIntervalMs": "600000",
    }
)


_PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"
CREDENTIALS = {"access_key": "operator", "secret_key": "12345678"}
ACLS: Mapping[str, str] = MappingProxyType(
    {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{_PROVIDERS}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{_PROVIDERS}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username": "operator", "password": "12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey": "operator", "secretKey": "12345678"}',
    }
)
"""Settings of brokers that authenticate clients. CREDENTIALS are those of a user with all rights."""


@dataclass(frozen=True)
class RocketMqAt:
    """The addresses of a running cluster: of its name server, and of its brokers by ``name/id``."""

    name_server: str
    brokers: Mapping[str, str]


@contextmanager
def embedded_rocketmq(
    folder: Path,
    *,
    nodes: Sequence[BrokerNode] = (BrokerNode(),),
    overrides: Mapping[str, str] = MappingProxyType({}),
    java_options: Sequence[str] = (),
) -> Iterator[EmbeddedRocketMq]:
    """Run a cluster until the block ends. Then it is killed, because a graceful end would take 20 s."""
    settings = {**SETTINGS, **overrides}
    cluster = EmbeddedRocketMq(folder, nodes=nodes, overrides=settings, java_options=java_options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def address_of(cluster: EmbeddedRocketMq) -> RocketMqAt:
    brokers = {name: server.address for name, server in cluster.brokers.items()}
    return RocketMqAt(cluster.name_server.address, brokers)


class RocketMqCluster(Closeable):
    """A running cluster, and a JVM with RocketMQ's clients. `close` ends the clients, not the cluster.

    `credentials` are `access_key` and `secret_key`, if the brokers authenticate clients.
    """

    def __init__(self, at: RocketMqAt, folder: Path, **credentials: str) -> None:
        self.at = at
        self.name_server = at.name_server
        self.clients = JavaClients(at.name_server, folder)
        self._admin = self.clients.producer("admin", **credentials)

    @property
    def broker(self) -> str:
        """Address of the first broker."""
        return next(iter(self.at.brokers.values()))

    def create_topic(self, queues: int = QUEUES) -> str:
        """Create a topic at all masters, wait until the name server has it, and return its name."""
        topic = f"orders-{uuid.uuid4().hex[:12]}"
        masters = {name: address for name, address in self.at.brokers.items() if name.endswith("/0")}
        for address in masters.values():
            self._admin.create_topic(topic, queues, address)
        wait_until(lambda: masters.keys() <= self._admin.brokers_of(topic).keys(), f"a route of {topic}")
        return topic

    def close(self) -> None:
        self.clients.kill()
        self.clients.close()


def new_group() -> str:
    """Return a new consumer group's name."""
    return f"group-{uuid.uuid4().hex[:12]}"
