"""Random scripts of share groups: five clients join a group of at most four members, leave it, change their
names, send epochs that are not theirs; a topic is made, grown and deleted; and an administrator describes,
resets and deletes.

The share coordinator initializes partitions at its own time. After a step that has something initialized, a
script waits until the group's offsets show all of it. After a change of a topic a member sends heartbeats
until its epoch rises. For that a script keeps account of what the group has.

How many partitions a member has, and so whether an answer brings a change, depends on the order of a hash map
where they cannot be dealt evenly. So how evenly they are dealt is compared, and Kafka plays each script
several times.
"""

import random
from dataclasses import dataclass, field

from tests.conformance.script import Case, Step
from tests.conformance.told import TOPICS

STEPS = 24
KAFKAS_PLAYS = 6

_CLIENTS = "ABCDE"
_MEMBERS_MAX = 4
_NEW = "~x"
_NONE = "none-such"
_NAMES = ("orders", "payments", "trips", _NEW, _NONE)
_COUNTS = (1, 2, 4)
_PARTITIONS_MAX = 6


def random_shares(seed: int) -> Case:
    """Return the script that the seed determines."""
    script = _Script(random.Random(seed))
    lines = [*script.join("A"), *(line for _ in range(STEPS) for line in script.step()), *script.end()]
    return Case(
        name=f"random script of shares {seed}",
        loose=True,
        steps=tuple(map(Step.parse, lines)),
        kafkas_plays=KAFKAS_PLAYS,
    )


@dataclass
class _Script:
    """The subscriptions of the members, the partitions of the topics, and those that the group has of each
    topic. `is_there`: the group is.
    """

    chance: random.Random
    members: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: {name: TOPICS[name] for name in _NAMES if name in TOPICS}
    )
    known: dict[str, set[int]] = field(default_factory=dict)

    def step(self) -> list[str]:
        makers = {
            self._join: 5,
            self._beat: 8,
            self._renamed: 4,
            self._wrong_epoch: 3,
            self._leave: 3,
            self._look: 4,
            self._topic: 3,
            self._stranger: 1,
            self._reset: 2,
            self._clear: 1,
            self._delete: 1,
        }
        (maker,) = self.chance.choices([*makers], [*makers.values()])
        return maker()

    def join(self, client: str) -> list[str]:
        """Join with random topic names."""
        names = self._some_names()
        line = f"{client} share epoch=0 names={','.join(names)}"
        if client not in self.members and len(self.members) == _MEMBERS_MAX:
            return [line]
        self.members[client] = set(names)
        return [line, *self._initialized(client)]

    def end(self) -> list[str]:
        """End the script: all members reach their target, and a topic of this script alone is removed."""
        lines = [f"{client} share" for _ in range(2) for client in sorted(self.members)]
        lines += ["A sharers", "A offsets"]
        return [*lines, f"A drop topics={_NEW}"] if _NEW in self.counts else lines

    def _initialized(self, client: str) -> list[str]:
        """Return the wait for what a heartbeat has initialized."""
        before = sum(map(len, self.known.values()))
        for name in set().union(*self.members.values()) & self.counts.keys():
            self.known[name] = set(range(self.counts[name]))
        now = sum(map(len, self.known.values()))
        return [f'{client} offsets until="{now} partitions"'] if now > before else []

    def _some_names(self) -> list[str]:
        names = self.chance.sample(_NAMES, self.chance.choice([1, 1, 2, 2, 3]))
        return sorted(names)

    def _member(self) -> str:
        return self.chance.choice([*sorted(self.members), "A"]) if self.members else "A"

    def _join(self) -> list[str]:
        return self.join(self.chance.choice(_CLIENTS))

    def _beat(self) -> list[str]:
        client = self._member()
        if client not in self.members:
            return self.join(client)
        rack = self.chance.choice(["", "", "", " rack=r1", " rack=r2"])
        return [f"{client} share{rack}", *self._initialized(client)]

    def _renamed(self) -> list[str]:
        client = self._member()
        if client not in self.members:
            return self.join(client)
        names = self._some_names() if self.chance.random() < 0.9 else []
        self.members[client] = set(names)
        return [f"{client} share names={','.join(names)}", *self._initialized(client)]

    def _wrong_epoch(self) -> list[str]:
        client = self._member()
        if client not in self.members:
            return [f"{client} share epoch={self.chance.choice([1, 99])}"]
        epoch = self.chance.choice(["mine-1", "mine-1", "mine+1", "mine+90"])
        return [f"{client} share epoch={epoch}"]

    def _leave(self) -> list[str]:
        client = self.chance.choice([self._member(), self.chance.choice(_CLIENTS)])
        self.members.pop(client, None)
        return [f"{client} share epoch=-1"]

    def _look(self) -> list[str]:
        return [self.chance.choice(["A sharers", "A sharers", "A offsets", "A offsets.0", "A describe"])]

    def _topic(self) -> list[str]:
        """Change the topic of the script, if somebody subscribes to it and can see the change."""
        client = next((one for one, names in sorted(self.members.items()) if _NEW in names), None)
        if client is None:
            return self._beat()
        # With this heartbeat the member has all that it can have, so its epoch rises by the change alone.
        lines = [f"{client} share", f"{client} {self._change()}", f"{client} share until=risen"]
        return [*lines, *self._initialized(client)]

    def _change(self) -> str:
        count = self.counts.get(_NEW, 0)
        if count and (count >= _PARTITIONS_MAX or self.chance.random() < 0.4):
            del self.counts[_NEW]
            self.known.pop(_NEW, None)
            return f"drop topics={_NEW}"
        self.counts[_NEW] = count + self.chance.choice(_COUNTS)
        return f"{'grow' if count else 'make'} topics={_NEW}:{self.counts[_NEW]}"

    def _stranger(self) -> list[str]:
        requests = ("join.3", "heartbeat", "beat", "commit", "fetch topics=all", "forget", "inspect")
        return [f"S {self.chance.choice(requests)}"]

    def _reset(self) -> list[str]:
        """Reset the offsets of an Empty group, or of a missing group, which creates it."""
        names = [name for name in self._some_names() if name != _NEW or name in self.counts]
        if not self.counts.keys() & names:
            return self._look()
        entries = [(name, self.chance.randrange(self.counts.get(name, 1))) for name in names]
        topics = ",".join(f"{name}:{index}:{self.chance.choice([-1, 0, 7])}" for name, index in entries)
        before = sum(map(len, self.known.values()))
        if not self.members:
            for name, index in entries:
                if name in self.counts:
                    self.known.setdefault(name, set()).add(index)
        now = sum(map(len, self.known.values()))
        waits = [f'A offsets until="{now} partitions"'] if now > before else []
        return [f"A reset topics={topics}", *waits]

    def _clear(self) -> list[str]:
        names = self._some_names()
        if not self.members:
            for name in names:
                self.known.pop(name, None)
        return [f"A clear topics={','.join(names)}"]

    def _delete(self) -> list[str]:
        if not self.members:
            self.known.clear()
        return ["A delete"]
