"""Share consumers of Kafka, many in one JVM, and its tools for groups and settings in the same JVM."""

import threading
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from queue import Queue
from types import MappingProxyType
from typing import Self

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import ReportingProgram, java_options, java_options_of, log_options

_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_CONFIGS = "org.apache.kafka.tools.ConfigCommand"
HARNESS = Path(__file__).with_name("kafkas_shares.java")
_END_TIMEOUT_S = 60.0
_TOOL_TIMEOUT_S = 90.0
# The tool's default of 5 s is too short for a coordinator on a busy machine.
_ANSWER_TIMEOUT_MS = 60_000
_numbers = count(1)


class ShareMember:
    """A share consumer of records that are numbers. `deliveries` has the delivery counts of each record."""

    def __init__(self, name: str, shares: "JavaShares") -> None:
        self.deliveries: dict[int, list[int]] = {}
        self.error: str | None = None
        self._name, self._shares = name, shares
        self._ended = threading.Event()

    def close(self) -> None:
        """Leave the group, and wait until that is done."""
        if not self._ended.is_set():
            self._shares.command(f"stop {self._name}")
        assert self._ended.wait(_END_TIMEOUT_S), f"{self._name} does not end"
        assert not self.error, self.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def handle_event(self, event: str, words: list[str]) -> None:
        """Handle an event that the consumer has reported."""
        if event == "record":
            self.deliveries.setdefault(int(words[0]), []).append(int(words[1]))
        else:
            self.error = " ".join(words)
            self._ended.set()


class JavaShares(ReportingProgram):
    """A JVM with share consumers of the cluster at `servers`. Its files are in `folder`.

    With `is_older` they are those of Kafka 4.3, without tools. `settings` apply to all clients.
    """

    def __init__(
        self,
        servers: str,
        folder: Path,
        *,
        is_older: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._servers = servers
        log_path = folder / f"shares-{next(_numbers)}.log"
        self._file = log_path.with_suffix(".client.properties")
        common = {"bootstrap.servers": servers, **settings}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in common.items()))
        self._members: dict[str, ShareMember] = {}
        self._printed: Queue[str | None] = Queue()
        # Kafka Connect, which is of version 4.3 here, includes that version's clients.
        options = java_options_of(jar_paths("connect")) if is_older else java_options(jar_paths("tools"))
        self._errors = log_path.with_suffix(".err").open("w")
        super().__init__(
            [str(find_java()), *options, *log_options(log_path), str(HARNESS), str(self._file)], self._errors
        )

    def join(self, group_id: str, topic: str, how: str = "accept") -> ShareMember:
        """Start a share consumer that accepts each record, releases it once (`release`), or rejects it. If
        `how` is a number, it always releases the records with that value, and accepts the others.
        """
        name = f"member-{next(_numbers)}"
        member = self._members[name] = ShareMember(name, self)
        self.command(f"start {name} {group_id} {topic} {how}")
        return member

    def tool(self, *arguments: str) -> list[list[str]]:
        """Return the words of each line that `kafka-share-groups` prints."""
        return [line.split() for line in self._run(_SHARE_GROUPS, *arguments)]

    def groups(self, *arguments: str) -> str:
        """Return what `kafka-consumer-groups` prints. It reports errors only there."""
        return "\n".join(self._run(_GROUPS, "--timeout", str(_ANSWER_TIMEOUT_MS), *arguments))

    def configs(self, *arguments: str) -> str:
        """Return what `kafka-configs` prints. The JVM ends if it fails."""
        return "\n".join(self._run(_CONFIGS, *arguments))

    def configure(self, group_id: str, setting: str) -> None:
        """Set a setting of a group by `kafka-configs`."""
        group = "--entity-type", "groups", "--entity-name", group_id
        printed = self.configs("--alter", *group, "--add-config", setting)
        assert printed == f"Completed updating config for group {group_id}."

    def _run(self, tool: str, *arguments: str) -> list[str]:
        """Return the lines that a tool prints, without empty ones."""
        access = ["--bootstrap-server", self._servers, "--command-config", str(self._file)]
        self.command(" ".join(["tool", tool, *access, *arguments]))
        lines: list[str] = []
        while (line := self._printed.get(timeout=_TOOL_TIMEOUT_S)) is not None:
            lines.append(line)
        return [line for line in lines if line.strip()]

    def close(self) -> None:
        super().close()
        self._errors.close()

    def handle_line(self, line: str) -> None:
        name, event, *words = line.split(" ")
        if name == "tool":
            self._printed.put(None if event == "ended" else " ".join(words))
        elif name in self._members:
            self._members[name].handle_event(event, words)

    def on_end(self) -> None:
        self._printed.put(None)
        for member in self._members.values():
            member.handle_event("ended", ["the JVM has ended"])
