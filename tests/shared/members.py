"""The processes of share consumers, and what they say."""

from pathlib import Path

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.campaigns.keeper import Keeper
from tests.harness.java_tools import java_options, java_options_of, log_options
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
        self.keepers = [
            Keeper(
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
        for keeper in self.keepers:
            keeper.start()

    def stop(self) -> None:
        for keeper in self.keepers:
            keeper.stop()

    def away(self, group: str) -> Path:
        """While this file is there, the group has no member."""
        return self.folder / f"{group}.away"

    def has_left(self, group: str) -> bool:
        """Return True if no process has a member of the group."""
        self.read()
        return not any(self._live.get((keeper.pid or 0, group), False) for keeper in self.keepers)

    def has_joined(self, group: str) -> bool:
        """Return True if each process has a member of the group."""
        self.read()
        return all(self._live.get((keeper.pid or 0, group), False) for keeper in self.keepers)

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
