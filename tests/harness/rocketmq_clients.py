"""RocketMQ's own Java clients, many in one JVM, and mqadmin."""

import json
import threading
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
from tests.harness.java_program import ReportingProgram
from tests.harness.java_tools import classpath_options, compiled

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
    """A message at a consumer. `queue` is ``broker:number``, `times` that it was consumed again."""

    at_s: float
    topic: str
    queue: str
    offset: int
    body: str
    times: int
    message_id: str


class JavaClient:
    """A client in the JVM. Its client id has `name` as the name of the instance.

    The times are those of the JVM, whose clock is that of time.monotonic.
    """

    def __init__(self, name: str, jvm: "JavaClients", arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.held: frozenset[str] = frozenset()
        """The queues that a consumer holds now, as ``broker:number``. An orderly one holds what it locked."""
        self.received: list[Received] = []
        self.checks: list[str] = []
        """The bodies of the messages whose transaction the broker has asked for."""
        self._jvm = jvm
        self._arguments = dict(arguments)

    @property
    def bodies(self) -> list[str]:
        """Bodies of what was received, in order."""
        return [message.body for message in list(self.received)]

    def start(self) -> "JavaClient":
        """Start the client, and return when its `start` has returned. Raises JavaClientFailed."""
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
        """Send messages one by one, and return their queues. All go to one queue if `shard` is given.
        `transaction` is the state that the producer reports at first (``UNKNOW``, ``COMMIT_MESSAGE`` ...).
        """
        more = {"shard": shard, "transaction": transaction}
        queues: list[str] = self._call(
            "send",
            topic=topic,
            bodies=list(bodies),
            tags=tags,
            message_properties=dict(message_properties),
            **{name: value for name, value in more.items() if value is not None},
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

    def note(self, event: Mapping[str, Any]) -> None:
        """Take over an event."""
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

        `settings`: `tags` or `sql` are its filter; `orderly`, `circle` (the strategy) and `replies` (to each
        message, for `request`) are booleans; `failures` is how often each message fails at first. Also of the
        other clients: `name`, `name_server`, `access_key`, `secret_key`, and `properties` of the client by
        their Java names.
        """
        return self._started("start-push", group=group, topic=topic, **settings)

    def lite_pull(self, group: str, topic: str, **settings: Any) -> JavaClient:
        """Start a DefaultLitePullConsumer that polls, from the first offset on."""
        return self._started("start-lite-pull", group=group, topic=topic, **settings)

    def producer(self, group: str = "producers", **settings: Any) -> JavaClient:
        """Start a producer."""
        return self._started("start-producer", group=group, **settings)

    def transactions(self, group: str, checked: str, **settings: Any) -> JavaClient:
        """Start a producer of transactions. `checked` is its answer to the broker's checks."""
        return self._started("start-transactions", group=group, checked=checked, **settings)

    def mqadmin(self, command: str, *arguments: str, name_server: str | None = None) -> str:
        """Return what mqadmin prints. It reports errors only there."""
        given = [command, "-n", name_server or self.name_server, *arguments]
        printed: str = self.call(do="mqadmin", arguments=given)
        return printed

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
        """Let the clients that start in the block shut down after it, each of which costs processor time."""
        before = [*self._clients]
        yield
        self.call(do="stop-all-but", names=before)

    def kill(self) -> None:
        """End the JVM with SIGKILL, so that no client leaves its group."""
        self._jvm.kill()

    @property
    def pid(self) -> int:
        return self._jvm.pid

    def take(self, line: str) -> None:
        event = json.loads(line)
        if "id" not in event:
            return self._clients[event["client"]].note(event)
        answer = self._answers.pop(event["id"])
        if "error" in event:
            answer.set_exception(JavaClientFailed(event["error"], event.get("code")))
        else:
            answer.set_result(event.get("result"))

    def note_end(self) -> None:
        for answer in self._answers.values():
            answer.set_exception(JavaClientFailed("the JVM has ended", None))

    def _started(self, what: str, *, name: str | None = None, **settings: Any) -> JavaClient:
        # Clients of two JVMs must not have one id.
        name = name or f"client-{self.pid}-{next(self._numbers)}"
        arguments = {"do": what, "name_server": self.name_server, "tags": "*", "properties": {}, **settings}
        client = self._clients[name] = JavaClient(name, self, arguments)
        return client.start()
