"""Random scripts of consumer groups: a dynamic member (`A`), a static one (`B`) and a classic one (`C`), so
that the group is upgraded and downgraded as they come and go.

No script does what is a kept difference: a static member that joins again takes another id, nobody subscribes
by pattern, and a classic member that left asks for a new id. Which partition a member has differs between the
servers. So up to four members divide a topic's partitions evenly, a member subscribes to one topic, and
commits name partitions by what the member was assigned. Which member has to give a partition up may still
depend on the order of a hash map of member ids, so Kafka plays each script several times.
"""

import random
from collections.abc import Callable, Mapping

from tests.conformance.script import Case, Step

STEPS = 24
KAFKAS_PLAYS = 5

_ALL = "trips/12"


def random_consumers(seed: int) -> Case:
    """Return the script that the seed determines."""
    script = _Script(random.Random(seed))
    lines = ["A beat", *(line for _ in range(STEPS) for line in script.lines()), "A inspect", "A describe"]
    return Case(
        name=f"random script of consumers {seed}",
        steps=tuple(map(Step.parse, lines)),
        kafkas_plays=KAFKAS_PLAYS,
    )


class _Script:
    """What a script has done so far: how often `B` took a new id, and whether `C` gave its id up."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._ids = 0
        self._needs_id = False

    def lines(self) -> list[str]:
        client = self._chance.choices("ABC", [4, 3, 3])[0]
        makers: Mapping[str, Callable[[], list[str]]] = {"A": self._a, "B": self._b, "C": self._c}
        return makers[client]()

    def _a(self) -> list[str]:
        return [self._beat("A", "")]

    def _b(self) -> list[str]:
        """Return a step of `B`. A join under a new id succeeds only when the instance is away; `B` is the id
        that joined last.
        """
        kind = self._chance.choices(["join", "beat", "away", "gone"], [3, 8, 1, 1])[0]
        if kind == "join":
            self._ids += 1
            version = self._chance.randint(0, 1)
            topic = self._chance.choice(["trips", "trips", "taxis"])
            return [f"B beat.{version} epoch=0 id=member-{{prefix}}B{self._ids} instance=i1 names={topic}"]
        if kind == "beat":
            return [self._beat("B", " instance=i1")]
        return [f"B beat epoch={-2 if kind == 'away' else -1} instance=i1"]

    def _beat(self, client: str, instance: str) -> str:
        version = self._chance.randint(0, 1)
        weights = {
            "": 6,
            " owned=now": 8,
            " owned=none": 3,
            " owned=before": 1,
            " owned=some": 1,
            " full=yes": 3,
            f" names={self._topic()}": 2,
            f" names={self._topic()} owned=none": 1,
            f" epoch={self._chance.randint(1, 6)}": 1,
            f" epoch={self._chance.randint(1, 6)} owned=now": 1,
        }
        if client == "A":
            weights |= {" epoch=0": 3, " epoch=0 names=taxis": 1, " epoch=-1": 1}
        other = {
            f"{client} commit.{self._chance.randint(9, 10)} topics=trips:mine:5": 3,
            f"{client} commit.{self._chance.randint(9, 10)} topics=trips:mine:5 gen=9": 1,
            f"{client} commit.{self._chance.randint(9, 10)} topics=trips:other:5,trips:mine:6": 1,
            f"{client} fetch.{self._chance.randint(9, 10)} topics= by=member": 2,
            f"{client} fetch.{self._chance.randint(9, 10)} topics= by=member epoch=3": 1,
            f"{client} inspect.{version}": 4,
            f"{client} heartbeat": 1,
            f"{client} leave.{self._chance.randint(3, 5)} members={self._chance.choice(['@A', '/i1'])}": 1,
            f"{client} delete": 1,
        }
        beats = {f"{client} beat.{version}{instance}{options}": weight for options, weight in weights.items()}
        choice = beats | other
        return self._chance.choices([*choice], [*choice.values()])[0]

    def _topic(self) -> str:
        return self._chance.choices(["trips", "taxis", "none-such", ""], [8, 3, 1, 1])[0]

    def _c(self) -> list[str]:
        kind = self._chance.choices(["join", "heartbeat", "sync", "leave", "commit"], [6, 5, 2, 1, 2])[0]
        version = self._chance.randint(0, 3)
        if kind == "join":
            own_id, self._needs_id = " id=" if self._needs_id else "", False
            owned = self._chance.choice(["now", "now", "none"])
            join = f"C join.{version}{own_id} protocols=cooperative-sticky:+trips owned={owned}"
            return [join, f"C sync assign=@C:{_ALL}"][: self._chance.choice([1, 2, 2, 2])]
        if kind == "leave":
            self._needs_id = True
            return [f"C leave.{self._chance.randint(0, 5)}"]
        return [
            {
                "heartbeat": f"C heartbeat.{version}",
                "sync": f"C sync assign=@C:{_ALL}",
                "commit": f"C commit.{self._chance.randint(2, 10)} topics=trips:mine:5",
            }[kind]
        ]
