"""Kafka's own sticky task assignor, run in a JVM, and random groups for it and ours."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from msgspec.structs import replace

from assignors.kafka.sticky_tasks import StickyTaskAssignor, SubtopologyTasks, Task, TaskMember, TasksOf, flat
from embedded.jars import class_path
from embedded.java import find_java

HARNESS = Path(__file__).with_name("kafkas_tasks.java")

MEMBERS, PROCESSES = "abcdefgh", "ABCDE"

Shares = dict[str, tuple[list[Task], list[Task]]]
"""The active and the standby tasks of each member."""


@dataclass
class TaskCase:
    """One group as input of the Java harness."""

    members: dict[str, TaskMember]
    subtopologies: dict[str, SubtopologyTasks]
    standbys: int

    def text(self) -> str:
        lines = [str(self.standbys)]
        for id_, of in self.subtopologies.items():
            lines.append(f"subtopology {id_} {of.count} {str(of.is_stateful).lower()}")
        for member_id, member in self.members.items():
            offsets = ",".join(f"{id_}:{number}:{at}" for (id_, number), at in member.offsets.items())
            words = [member.process_id, _text(member.active), _text(member.standby), offsets]
            lines.append(" ".join(["member", member_id, *(word or "-" for word in words)]))
        return "\n".join([*lines, "", ""])

    def ours(self) -> Shares:
        found = StickyTaskAssignor().assign(self.members, self.subtopologies, self.standbys)
        return {
            member_id: (sorted(flat(tasks.active)), sorted(flat(tasks.standby)))
            for member_id, tasks in found.targets.items()
        }

    def is_free_of_ties(self) -> bool:
        """Return True if other names of members and processes do not change the answer."""
        random, ours = Random(1), self.ours()
        for _ in range(6):
            member = dict(zip(MEMBERS, random.sample(MEMBERS, len(MEMBERS)), strict=True))
            process = dict(zip(PROCESSES, random.sample(PROCESSES, len(PROCESSES)), strict=True))
            members = {
                member[id_]: replace(given, process_id=process[given.process_id])
                for id_, given in self.members.items()
            }
            renamed = TaskCase(members, self.subtopologies, self.standbys).ours()
            if any(renamed[member[id_]] != ours[id_] for id_ in self.members):
                return False
        return True


def _text(tasks: TasksOf) -> str:
    return ",".join(f"{id_}:{number}" for id_, number in flat(tasks))


def ask_kafka(cases: Iterable[TaskCase], timeout_s: float = 250) -> list[str]:
    """Return Kafka's answer to each case, as the Java harness prints it."""
    command = [str(find_java()), "-Dlog4j2.level=OFF", "-cp", class_path("broker"), str(HARNESS)]
    text = "".join(case.text() for case in cases)
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout.splitlines()


def read_answer(line: str) -> Shares:
    shares: Shares = {}
    for word in line.split():
        member_id, _, tasks = word.partition("=")
        active, _, standby = tasks.partition("/")
        shares[member_id] = _tasks(active), _tasks(standby)
    return shares


def _tasks(text: str) -> list[Task]:
    pairs = (word.split(":") for word in text.split(",") if word)
    return sorted((id_, int(number)) for id_, number in pairs)


def random_cases(random: Random, number: int) -> Iterator[TaskCase]:
    """Yield groups with a past: some members are gone, others are new, and the number of standby replicas may
    have changed. The order of ties, which in Kafka is that of a hash table, changes nothing.
    """
    while number:
        case = _random_case(random)
        if len(case.members) > 1 and case.is_free_of_ties():
            number -= 1
            yield case


def _random_case(random: Random) -> TaskCase:
    subtopologies = {
        str(id_): SubtopologyTasks(random.randint(1, 6), random.random() < 0.7)
        for id_ in range(random.randint(1, 3))
    }
    processes = PROCESSES[: random.randint(1, len(PROCESSES))]
    ids = random.sample(MEMBERS, random.randint(1, len(MEMBERS)))
    process_of = {member_id: random.choice(processes) for member_id in MEMBERS}
    standbys = random.randint(0, 2)
    before = {id_: TaskMember(process_of[id_]) for id_ in random.sample(MEMBERS, random.randint(1, 6))}
    past = TaskCase(before, subtopologies, random.choice([0, standbys])).ours()
    members: dict[str, TaskMember] = {}
    for id_ in sorted(ids):
        active, standby = past.get(id_, ([], []))
        has = _by_subtopology(active), _by_subtopology(standby)
        members[id_] = TaskMember(process_of[id_], *has, offsets=_offsets(random, subtopologies))
    return TaskCase(members, subtopologies, standbys)


def _by_subtopology(tasks: Iterable[Task]) -> TasksOf:
    found: dict[str, list[int]] = {}
    for id_, number in tasks:
        found.setdefault(id_, []).append(number)
    return found


def _offsets(random: Random, subtopologies: Mapping[str, SubtopologyTasks]) -> dict[Task, int]:
    tasks = list(flat({id_: range(of.count) for id_, of in subtopologies.items() if of.is_stateful}))
    share = random.choice([0, 0, 0.3])
    return {task: random.randrange(1_000) for task in tasks if random.random() < share}
