"""Random scripts of streams groups: four clients send random heartbeats to one group.

The topics have 12 partitions, so that up to four members have equally many tasks in the end. On the way there
it depends on the order of a hash map of Kafka which of several new members gets which task first.
"""

import random
from dataclasses import dataclass, field

from tests.conformance.script import Case, Step

_CLIENTS = ("A", "B", "C", "D")
_STEPS = 24
_KAFKAS_PLAYS = 3


def random_streams(seed: int) -> Case:
    """Return the random script of this seed. Kafka plays it several times, with other member ids."""
    script = _Script(random.Random(f"streams {seed}"))
    lines = [f"A stream epoch=0 {script.topology}"]
    script.members.add("A")
    while len(lines) < _STEPS:
        lines += script.step()
    lines += [f"{client} stream owned=now" for _ in range(3) for client in sorted(script.members)]
    return Case(
        name=f"random streams {seed}",
        version=None,
        rows=(),
        servers="plain",
        slow=False,
        quick=False,
        steps=tuple(map(Step.parse, [*lines, "A tasks"])),
        kafkas_plays=_KAFKAS_PLAYS,
    )


@dataclass
class _Script:
    """The members of the group, and the processes of the clients."""

    chance: random.Random
    members: set[str] = field(default_factory=set)
    topology: str = field(init=False)

    def __post_init__(self) -> None:
        self.topology = f"topology={self.chance.choice(['trips', 'trips/taxis', 'trips,taxis'])}"

    def step(self) -> list[str]:
        """Return the lines of one random step."""
        makers = {
            self._join: 4,
            self._keep_alive: 5,
            self._acknowledge: 8,
            self._wrong_epoch: 2,
            self._leave: 2,
            self._describe: 2,
            self._stranger: 1,
            self._shut_down: 1,
        }
        (maker,) = self.chance.choices([*makers], [*makers.values()])
        return maker()

    def _member(self) -> str:
        return self.chance.choice(sorted(self.members) or ["A"])

    def _join(self) -> list[str]:
        client = self.chance.choice(_CLIENTS)
        self.members.add(client)
        more = self.chance.choice(["", "", "", " rack=r1", " tags=k:v"])
        return [f"{client} stream epoch=0 {self.topology}{more}"]

    def _keep_alive(self) -> list[str]:
        return [f"{self._member()} stream"]

    def _acknowledge(self) -> list[str]:
        return [f"{self._member()} stream owned=now"]

    def _wrong_epoch(self) -> list[str]:
        epoch = self.chance.choice(["mine-1", "mine-1", "mine+1", "mine+9"])
        return [f"{self._member()} stream epoch={epoch}{self.chance.choice(['', ' owned=now'])}"]

    def _leave(self) -> list[str]:
        client = self._member()
        self.members.discard(client)
        return [f"{client} stream epoch=-1"]

    def _describe(self) -> list[str]:
        return [self.chance.choice(["A tasks", "A tasks", "A tasks.0", "A describe"])]

    def _stranger(self) -> list[str]:
        requests = (
            "join.3",
            "heartbeat",
            "beat epoch=0",
            "commit gen=1",
            "fetch topics=all",
            "forget",
            "delete",
        )
        return [f"S {self.chance.choice(requests)}"] if self.members else []

    def _shut_down(self) -> list[str]:
        return [f"{self._member()} stream owned=now shutdown=yes"] if self.members else []
