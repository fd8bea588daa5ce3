"""Random scripts of streams groups: four clients send random heartbeats to one group.

The topics have 12 partitions, so that up to four members have equally many tasks in the end. On the way there
it depends on the order of a hash map of Kafka which of several new members gets which task first.
"""

from random import Random

from tests.conformance.script import Case, Step

_STEPS = 24
_KAFKAS_PLAYS = 3
_TOPOLOGIES = ("0:trips", "0:trips; 1:taxis", "0:trips taxis")
_STRANGERS = ("join.3", "heartbeat", "beat epoch=0", "commit gen=1", "fetch topics=all", "forget", "delete")
_WEIGHTS = {
    "join": 4,
    "keep alive": 5,
    "acknowledge": 8,
    "wrong epoch": 2,
    "leave": 2,
    "describe": 2,
    "stranger": 1,
    "shut down": 1,
}


def random_streams(seed: int) -> Case:
    """Return the random script of this seed. Kafka plays it several times, with other member ids."""
    random, members = Random(f"streams {seed}"), {"A"}
    joins = f'stream epoch=0 topology="{random.choice(_TOPOLOGIES)}"'
    lines = [f"A {joins}"]
    while len(lines) < _STEPS:
        lines += filter(None, [_line(random, members, joins)])
    lines += [f"{client} stream own=now" for _ in range(3) for client in sorted(members)]
    return Case(
        name=f"random streams {seed}",
        steps=tuple(map(Step.parse, [*lines, "A tasks"])),
        kafkas_plays=_KAFKAS_PLAYS,
    )


def _line(random: Random, members: set[str], joins: str) -> str:
    """Return a random step, or "". `members` are then those of the group after it."""
    (kind,) = random.choices([*_WEIGHTS], [*_WEIGHTS.values()])
    if kind == "describe":
        return random.choice(["A tasks", "A tasks", "A tasks.0", "A describe"])
    if kind in ("stranger", "shut down") and not members:
        return ""
    if kind == "stranger":
        return f"S {random.choice(_STRANGERS)}"
    epoch = random.choice(["mine-1", "mine-1", "mine+1", "mine+9"]) if kind == "wrong epoch" else ""
    client = random.choice("ABCD" if kind == "join" else sorted(members) or ["A"])
    match kind:
        case "join":
            members.add(client)
            return f"{client} {joins}{random.choice(['', '', '', ' rack=r1', ' tags=k:v'])}"
        case "wrong epoch":
            return f"{client} stream epoch={epoch}{random.choice(['', ' own=now'])}"
        case "leave":
            members.discard(client)
            return f"{client} stream epoch=-1"
        case "shut down":
            return f"{client} stream own=now shutdown=yes"
    return f"{client} stream{' own=now' if kind == 'acknowledge' else ''}"
