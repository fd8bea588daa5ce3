"""Groups as Kafka's Java client describes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import JavaProgram, java_options, log_options

HARNESS = Path(__file__).with_name("kafkas_groups.java")

Held = Mapping[str, frozenset[str]]
"""What members have, by their client ids: `TOPIC:NUMBER`, or `ROLE SUBTOPOLOGY:NUMBER` of tasks."""


class KafkasGroup(NamedTuple):
    """A group as Kafka describes it. `has_target` is True if the target assignment has the group epoch."""

    state: str
    epoch: int
    has_target: bool
    held: Held


class JavaGroups(JavaProgram):
    """A JVM that describes groups of the cluster at `servers`. Its log is in `folder`."""

    def __init__(self, servers: str, folder: Path) -> None:
        options = [*java_options(jar_paths("streams")), *log_options(folder / "groups.log")]
        super().__init__([str(find_java()), *options, str(HARNESS), f"bootstrap.servers={servers}"])

    def describe(self, kind: str, group_id: str) -> KafkasGroup | None:
        """Return a group as Kafka describes it now, None if there is no such group. `kind` may be `classic`,
        too: such a group has no epochs, and what its members have is not described.
        """
        state, *others = self.answer(f"describe-{kind} {group_id}").split("|")
        if not others:
            return None
        epoch, target_epoch, *members = others
        held = {name: frozenset(filter(None, parts.split(","))) for name, parts in map(_halves, members)}
        return KafkasGroup(state, int(epoch), epoch == target_epoch, held)


def _halves(member: str) -> tuple[str, str]:
    """Return the client id without Kafka Streams' suffix for the thread, and the member's assignment."""
    name, _, assignment = member.partition(" ")
    return name.split("-StreamThread-")[0], assignment
