"""Random scripts: two members send random requests at random versions, and no step waits for an answer. Some
requests follow each other on one connection at once.

There are only two members, so that at most one is left when one goes and the next leader is never a random
choice. The static member may be two clients at once (`B` and `C`), which replace each other.
"""

import random

from tests.conformance.script import Case, Step

STEPS = 14

_PROTOCOLS = ("range", "range:x", "range,sticky", "range:x,sticky", "sticky")


def random_case(seed: int) -> Case:
    chance = random.Random(seed)
    begin = ["A join.3 ?", "A sync assign=@A:all ?"]
    lines = [*begin, *(line for _ in range(STEPS) for line in _run(chance)), "A describe"]
    return Case(
        name=f"random script {seed}",
        steps=tuple(map(Step.parse, lines)),
    )


def _run(chance: random.Random) -> list[str]:
    """Return one client's next request, in one of three cases behind others that nothing parks."""
    client = chance.choice("ABC")
    first = chance.choices(["heartbeat", "commit", "fetch", "forget", "leave"], [4, 6, 4, 1, 1], k=3)
    run = first[: chance.choice([0, 0, 0, 0, 2, 3])]
    last = chance.choices(
        ["join", "sync", "heartbeat", "leave", "commit", "fetch", "describe", "forget", "delete"],
        [8, 6, 3, 2, 3, 1, 3, 1, 1],
    )[0]
    return [*(f"{_line(chance, client, api)} +" for api in run), f"{_line(chance, client, last)} ?"]


def _line(chance: random.Random, client: str, api: str) -> str:
    instance = "" if client == "A" else " instance=i1"
    return _LINES[api](chance, client, instance)


def _join(chance: random.Random, client: str, instance: str) -> str:
    version = chance.randint(5, 9) if instance else chance.randint(0, 9)
    forget_id = " id=" if instance and chance.random() < 0.5 else ""
    return f"{client} join.{version}{instance}{forget_id} protocols={chance.choice(_PROTOCOLS)}"


def _sync(chance: random.Random, client: str, instance: str) -> str:
    version = chance.randint(3, 5) if instance else chance.randint(0, 5)
    assigned = f"@A:{chance.randint(1, 9)},@B:{chance.randint(1, 9)},@C:{chance.randint(1, 9)}"
    return f"{client} sync.{version}{instance}{_generation(chance)} assign={assigned}"


def _heartbeat(chance: random.Random, client: str, instance: str) -> str:
    version = chance.randint(3, 4) if instance else chance.randint(0, 4)
    return f"{client} heartbeat.{version}{instance}{_generation(chance)}"


def _generation(chance: random.Random) -> str:
    return chance.choices(["", f" gen={chance.randint(-1, 4)}"], [7, 1])[0]


def _leave(chance: random.Random, client: str, instance: str) -> str:
    if not instance:
        return f"{client} leave.{chance.randint(0, 5)}"
    return (
        f"{client} leave.{chance.randint(3, 5)} members={chance.choice(['@B/i1', '@C/i1', '/i1', '@A,/i1'])}"
    )


def _commit(chance: random.Random, client: str, instance: str) -> str:
    version = chance.randint(7, 10) if instance else chance.randint(2, 10)
    topics = f"orders:{chance.randint(0, 2)}:{chance.randint(0, 99)},payments:0:{chance.randint(0, 99)}"
    return f"{client} commit.{version}{instance}{_generation(chance)} topics={topics}"


def _fetch(chance: random.Random, client: str, instance: str) -> str:
    return f"{client} fetch.{chance.randint(2, 10)} topics={chance.choice(['all', 'orders:0,payments:0'])}"


def _describe(chance: random.Random, client: str, instance: str) -> str:
    return f"{client} describe.{chance.randint(0, 6)}"


def _forget(chance: random.Random, client: str, instance: str) -> str:
    return f"{client} forget topics=orders:0,payments:0"


def _delete(chance: random.Random, client: str, instance: str) -> str:
    return f"{client} delete.{chance.randint(0, 2)}"


_LINES = {
    "commit": _commit,
    "delete": _delete,
    "describe": _describe,
    "fetch": _fetch,
    "forget": _forget,
    "heartbeat": _heartbeat,
    "join": _join,
    "leave": _leave,
    "sync": _sync,
}
