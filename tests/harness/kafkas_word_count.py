"""Instances of a word count with Kafka Streams (streams protocol), many in one JVM, together with Kafka's
tools.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from queue import Queue
from types import MappingProxyType

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import ReportingProgram, compiled, java_options, java_options_of, log_options

_STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
HARNESS = Path(__file__).with_name("kafkas_word_count.java")
_MAIN = "WordCountOfKafka"
_CONFIGS = "org.apache.kafka.tools.ConfigCommand"
_ANSWER_TIMEOUT_S = 90.0
# The tool's default of 5 s is too short for a coordinator on a busy machine.
_TOOL_TIMEOUT_MS = "60000"
_numbers = count(1)


class WordCountInstance:
    """An instance of the application. `states` has all its states so far, and `errors` the errors that ended
    its threads. `endpoint` is the address of its interactive queries.
    """

    def __init__(self, name: str, endpoint: str, java: "JavaWordCounts") -> None:
        self.states: list[str] = []
        self.errors: list[str] = []
        self.endpoint = endpoint
        self._name, self._java = name, java
        self._answers: Queue[str] = Queue()

    @property
    def state(self) -> str:
        """The newest state."""
        return self.states[-1] if self.states else ""

    def tasks(self) -> Sequence[str]:
        """Return the tasks of its threads, such as `active:0_1`, sorted."""
        return self._ask(f"tasks {self._name}").split()

    def active(self) -> Sequence[str]:
        """Return its active tasks."""
        return [task for task in self.tasks() if task.startswith("active:")]

    def counted(self, word: str) -> str:
        """Return the count of a word in the local store, or `at HOST:PORT` if another instance has it."""
        return self._ask(f"count {self._name} {word}")

    def stop(self, *, leaves: bool = True) -> None:
        """End the instance. If it does not leave the group, its session has to expire."""
        assert self._ask(f"stop {self._name} {'leave' if leaves else 'remain'}") == "stopped"

    def handle_event(self, event: str, words: Sequence[str]) -> None:
        """Handle an event that the instance has reported."""
        if event == "answer":
            self._answers.put(" ".join(words))
        elif event == "state":
            self.states += words
        else:
            self.errors.append(" ".join(words))

    def _ask(self, line: str) -> str:
        self._java.command(line)
        return self._answers.get(timeout=_ANSWER_TIMEOUT_S)


class JavaWordCounts(ReportingProgram):
    """A JVM with instances of applications at the cluster at `servers`. Its files are in `folder`.

    `settings` apply to all clients. With `is_older` it has Kafka 4.3, without the tools.
    """

    def __init__(
        self,
        servers: str,
        folder: Path,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        is_older: bool = False,
    ) -> None:
        self._servers = servers
        self._folder = folder
        log_path = folder / f"word-counts-{next(_numbers)}.log"
        self._clients = log_path.with_suffix(".client.properties")
        self._file = log_path.with_suffix(".streams.properties")
        common = {"bootstrap.servers": servers, **settings}
        _write(self._clients, common)
        serde = "org.apache.kafka.common.serialization.Serdes$StringSerde"
        _write(
            self._file,
            {
                "default.key.serde": serde,
                "default.value.serde": serde,
                "commit.interval.ms": "200",
                "statestore.cache.max.bytes": "0",
                "main.consumer.auto.offset.reset": "earliest",
                **common,
            },
        )
        self._instances: dict[str, WordCountInstance] = {}
        self._printed: Queue[str | None] = Queue()
        self._errors = log_path.with_suffix(".err").open("w")
        if is_older:
            options, jars = java_options_of, jar_paths("streams_4_3")
        else:
            options, jars = java_options, [*dict.fromkeys([*jar_paths("streams"), *jar_paths("tools")])]
        classes = compiled([HARNESS], options(jars)[-2:])
        command = [*options([*jars, classes]), *log_options(log_path), _MAIN, str(self._file)]
        super().__init__([str(find_java()), *command], self._errors)

    def start(
        self, name: str, group_id: str, topics: tuple[str, str], endpoint: str = "", **settings: str
    ) -> WordCountInstance:
        """Start an instance that reads the first of `topics` and writes counts to the second. `settings` are
        of Kafka Streams, with `_` for `.`.
        """
        instance = self._instances[name] = WordCountInstance(name, endpoint, self)
        own = {"state.dir": str(self._folder / name)} | {k.replace("_", "."): v for k, v in settings.items()}
        if endpoint:
            own["application.server"] = endpoint
        words = [f"{setting}={value}" for setting, value in own.items()]
        self.command(" ".join(["start", name, group_id, *topics, *words]))
        return instance

    def groups(self, *arguments: str) -> list[list[str]]:
        """Return the words of each line that `kafka-streams-groups` prints."""
        return [
            line.split() for line in self._run(_STREAMS_GROUPS, "--timeout", _TOOL_TIMEOUT_MS, *arguments)
        ]

    def configure(self, group_id: str, setting: str) -> None:
        """Set a setting of a group by `kafka-configs`."""
        group = "--entity-type", "groups", "--entity-name", group_id
        printed = self._run(_CONFIGS, "--alter", *group, "--add-config", setting)
        assert printed == [f"Completed updating config for group {group_id}."]

    def _run(self, tool: str, *arguments: str) -> list[str]:
        """Return the lines that a tool prints, without empty ones."""
        access = ["--bootstrap-server", self._servers, "--command-config", str(self._clients)]
        self.command(" ".join(["tool", tool, *access, *arguments]))
        lines: list[str] = []
        while (line := self._printed.get(timeout=_ANSWER_TIMEOUT_S)) is not None:
            lines.append(line)
        return [line for line in lines if line.strip()]

    def close(self) -> None:
        super().close()
        self._errors.close()

    def handle_line(self, line: str) -> None:
        name, event, *words = line.split(" ")
        if name == "tool":
            self._printed.put(None if event == "ended" else " ".join(words))
        elif name in self._instances:
            self._instances[name].handle_event(event, words)

    def on_end(self) -> None:
        self._printed.put(None)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
