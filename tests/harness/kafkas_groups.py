"""Members of share and streams groups by Kafka's Java clients, and Kafka's description of these groups."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_program import JavaProgram
from tests.harness.java_tools import java_options, log_options
from tests.harness.waiting import wait_until

HARNESS = Path(__file__).with_name("kafkas_groups.java")

Held = Mapping[str, frozenset[str]]
"""What members have, by their client ids: `TOPIC:NUMBER`, or `ROLE SUBTOPOLOGY:NUMBER` of tasks."""


class KafkasGroup(NamedTuple):
    """A group as Kafka describes it. `has_target`: the target assignment is that of the group epoch."""

    state: str
    epoch: int
    has_target: bool
    held: Held


class JavaGroups(JavaProgram):
    """A JVM with members of groups of the cluster at `servers`. Its files are in `folder`."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._folder = folder
        options = [*java_options(jar_paths("streams")), *log_options(folder / "groups.log")]
        super().__init__([str(find_java()), *options, str(HARNESS), f"bootstrap.servers={servers}"])

    def join_share(self, name: str, group_id: str, topic: str) -> None:
        """Start a share consumer with this client id."""
        self._ask("share", name, group_id, topic)

    def join_streams(self, name: str, group_id: str, topic: str) -> None:
        """Start an application with one thread, which has this client id and a process of its own."""
        self._ask("streams", name, group_id, topic, str(self._folder / name))

    def stop(self, name: str) -> None:
        """Stop a member. It leaves its group."""
        self._ask("stop", name)

    def delete_share(self, group_id: str) -> None:
        """Delete a share group, which has to be empty."""
        self._ask("delete-share", group_id)

    def await_held(self, kind: str, group_id: str, is_right: Callable[[Held], bool]) -> KafkasGroup:
        """Wait until Kafka says that the members have what they are to have. `kind`: `share` or `streams`."""
        found: list[KafkasGroup] = []

        def is_there() -> bool:
            group = self.describe(kind, group_id)
            if group is None:
                return False
            found.append(group)
            return group.has_target and group.state in ("Stable", "Empty") and is_right(group.held)

        wait_until(is_there, f"{group_id} as it is to be; the last answer was {found[-1:]}")
        return found[-1]

    def describe(self, kind: str, group_id: str) -> KafkasGroup | None:
        """A group as Kafka describes it now, None if there is no such group. `kind` may be `classic`, too:
        such a group has no epochs, and what its members have is not described.
        """
        state, *others = self.answer(f"describe-{kind} {group_id}").split("|")
        if not others:
            return None
        epoch, target_epoch, *members = others
        held = {name: frozenset(filter(None, has.split(","))) for name, has in map(_halves, members)}
        return KafkasGroup(state, int(epoch), epoch == target_epoch, held)

    def _ask(self, *words: str) -> None:
        answer = self.answer(" ".join(words))
        assert answer == "done", answer


def _halves(member: str) -> tuple[str, str]:
    """The client id, without what Kafka Streams adds for the thread, and what the member has."""
    name, _, has = member.partition(" ")
    return name.split("-StreamThread-")[0], has
