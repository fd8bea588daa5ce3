"""The processes of share consumers, and what they say; what the brokers' share coordinators keep."""

from pathlib import Path

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.campaigns.restarting_process import RestartingProcess
from tests.harness.java_tools import JavaProgram, java_options, java_options_of, log_options
from tests.shared.judge import Event

HERE = Path(__file__).parent


def java_command(
    classes: Path, main: str, log_path: Path, *arguments: str, is_older: bool = False
) -> list[str]:
    """Return the command line of one of these classes, with the clients of Kafka 4.4, or 4.3."""
    if is_older:
        options = java_options_of([*jar_paths("connect"), classes])
    else:
        options = java_options([*jar_paths("tools"), classes])
    return [str(find_java()), *options, *log_options(log_path), main, *arguments]


class Members:
    """Processes with one member of each group each, every third one with the clients of Kafka 4.3. `groups`
    have the mode of their acknowledgements.
    """

    def __init__(
        self, folder: Path, classes: Path, servers: str, topics: list[str], groups: dict[str, str], size: int
    ) -> None:
        self.folder = folder
        self.groups = groups
        self.events: list[Event] = []
        """All that they said so far, those of one process in the order of their times."""
        self._read: dict[Path, int] = {}
        self._live: dict[tuple[int, str], bool] = {}
        folder.mkdir()
        named = [f"{name}:{mode}" for name, mode in groups.items()]
        arguments = (servers, str(folder), ",".join(topics), *named)
        self.processes = [
            RestartingProcess(
                f"member-{number}",
                folder,
                java_command(
                    classes,
                    "ShareMembers",
                    folder / f"{number}.kafka.log",
                    *arguments,
                    is_older=number % 3 == 2,
                ),
                final_codes=(),
            )
            for number in range(size)
        ]

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

    def away(self, group: str) -> Path:
        """While this file is there, the group has no member."""
        return self.folder / f"{group}.away"

    def has_left(self, group: str) -> bool:
        """Return True if no process has a member of the group."""
        self.read()
        return not any(self._live.get((process.pid or 0, group), False) for process in self.processes)

    def has_joined(self, group: str) -> bool:
        """Return True if each process has a member of the group."""
        self.read()
        return all(self._live.get((process.pid or 0, group), False) for process in self.processes)

    def read(self) -> list[Event]:
        """Return what they have said since the last call."""
        fresh = []
        for path in sorted(self.folder.glob("*.events")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            for line in whole.decode().splitlines():
                at_ns, group, kind, number, *words = line.split()
                if kind in ("joined", "left"):
                    self._live[int(path.stem), group] = kind == "joined"
                else:
                    fresh.append(Event(int(at_ns), int(path.stem), group, kind, int(number), tuple(words)))
        self.events += fresh
        return fresh


class States(JavaProgram):
    """Reads states as a principal with CLUSTER_ACTION, by Kafka's own classes (`states.java`)."""

    def __init__(self, classes: Path, folder: Path, client_settings: Path) -> None:
        super().__init__(java_command(classes, "ShareStates", folder / "states.log", str(client_settings)))

    def read(self, group: str, topic_id: str, partition: int) -> tuple[int, int] | None:
        """Return the state epoch and the start offset, None if the coordinator cannot say now. `topic_id` is
        Kafka's text of it.
        """
        words = self.answer(f"{group} {topic_id} {partition}").split()
        if not words or words[0] == "retry" or words[2] != "0":
            return None
        return int(words[0]), int(words[1])
