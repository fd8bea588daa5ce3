"""Kafka's own answers to random groups: of its assignors of kafka-clients and its group coordinator, and of
its sticky task assignor.

A file has its answer to each group, one a line; `--rewrite` asks it again. `tests/slow` has a test that asks
the first ones for many more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from assignors.kafka.sticky_tasks import StickyTaskAssignor, SubtopologyTasks, Task, TaskMember, TasksOf, flat
from tests.harness.kafkas_assignors import HARNESS, ask_kafka, read_answer
from tests.harness.live_cases import identical_cases

RECORDED = Path(__file__).parent / "test_live.txt"
RECORDED_OF_EACH = 8
RECORDED_TASKS = Path(__file__).parent / "test_live_tasks.txt"


def test_assignments_equal_kafkas_recorded_ones(request: pytest.FixtureRequest) -> None:
    cases = list(identical_cases(Random(1), RECORDED_OF_EACH))
    if request.config.getoption("rewrite"):
        asked = zip(cases, ask_kafka(cases), strict=True)
        RECORDED.write_text("".join(f"{c.assignor} {line.partition(' ')[2]}\n" for c, line in asked))
    answers = RECORDED.read_text().splitlines()
    assert len(answers) > RECORDED_OF_EACH
    for case, answer in zip(cases, answers, strict=True):
        assert case.ours() == read_answer(answer), case.text()


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


def read_tasks(line: str) -> Shares:
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


def test_tasks_equal_those_that_kafka_assigned(request: pytest.FixtureRequest) -> None:
    cases = list(random_cases(Random(1), 60))
    if request.config.getoption("rewrite"):
        asked = ask_kafka(cases, harness=HARNESS.with_name("java"))
        RECORDED_TASKS.write_text("".join(f"{line}\n" for line in asked))
    answers = [read_tasks(line) for line in RECORDED_TASKS.read_text().splitlines()]
    for case, answer in zip(cases, answers, strict=True):
        assert case.ours() == answer, case.text()
    assert any(standby for answer in answers for _, standby in answer.values())
