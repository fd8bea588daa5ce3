"""The sticky task assignor: its promises to any group. `test_live.py` has the answers of Kafka."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.sticky_tasks import (
    StickyTaskAssignor,
    SubtopologyTasks,
    Task,
    TaskAssignment,
    TaskMember,
    TasksOf,
    flat,
)
from tests.harness.examples import examples

Subtopologies = Mapping[str, SubtopologyTasks]
Members = Mapping[str, TaskMember]
some = examples(150)


def assign(members: Members, subtopologies: Subtopologies, standbys: int = 0) -> TaskAssignment:
    return StickyTaskAssignor().assign(members, subtopologies, standbys)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, TaskMember], dict[str, SubtopologyTasks], int]:
    """Draw a group: any tasks, any processes with any threads, and any tasks that the members have now."""
    subtopologies = {
        str(number): SubtopologyTasks(draw(st.integers(0, 8)), draw(st.booleans()))
        for number in range(draw(st.integers(0, 3)))
    }
    random = draw(st.randoms(use_true_random=False))
    processes = draw(st.integers(1, 5))
    ids = [f"m{number}" for number in range(draw(st.integers(1, 8)))]
    owned = past(ids, subtopologies, random)
    members = {
        id_: TaskMember(f"p{random.randrange(processes)}", *owned[id_], offsets(subtopologies, random))
        for id_ in ids
    }
    return members, subtopologies, draw(st.integers(0, 2))


def past(ids: list[str], subtopologies: Subtopologies, random: Random) -> dict[str, tuple[TasksOf, TasksOf]]:
    """Return active and standby tasks of each member: a task is active at most once."""
    found: dict[str, tuple[dict[str, list[int]], dict[str, list[int]]]] = {id_: ({}, {}) for id_ in ids}
    for id_, number in flat({id_: range(one.count + 1) for id_, one in subtopologies.items()}):
        for role in range(2):
            if random.random() < 0.7:
                found[random.choice(ids)][role].setdefault(id_, []).append(number)
    return {id_: (active, standby) for id_, (active, standby) in found.items()}


def offsets(subtopologies: Subtopologies, random: Random) -> dict[Task, int]:
    return {
        (id_, number): random.randrange(100)
        for id_, one in subtopologies.items()
        for number in range(one.count)
        if random.random() < 0.2
    }


any_group = given(groups())


@some
@any_group
def test_tasks_are_active_once_and_have_their_standbys_in_other_processes(
    group: tuple[Members, Subtopologies, int],
) -> None:
    """As far as processes suffice. A process has a task at most once."""
    members, subtopologies, standbys = group
    found = assign(members, subtopologies, standbys)
    assert found.targets.keys() == members.keys()
    active = Counter(task for target in found.targets.values() for task in flat(target.active))
    assert active == Counter(flat({id_: range(one.count) for id_, one in subtopologies.items()}))
    copies = Counter(task for target in found.targets.values() for task in flat(target.standby))
    possible = min(standbys, len({member.process_id for member in members.values()}) - 1)
    stateful = {id_: range(one.count) for id_, one in subtopologies.items() if one.is_stateful}
    assert copies == +Counter(dict.fromkeys(flat(stateful), possible))
    missing = standbys - possible
    assert found.missing_standbys == (dict.fromkeys(flat(stateful), missing) if missing else {})
    seen: Counter[tuple[str, Task]] = Counter()
    for member_id, target in found.targets.items():
        process_id = members[member_id].process_id
        seen.update((process_id, task) for tasks in (target.active, target.standby) for task in flat(tasks))
    assert all(count == 1 for count in seen.values())


@some
@any_group
def test_member_keeps_active_tasks_up_to_its_even_share(group: tuple[Members, Subtopologies, int]) -> None:
    """A member never keeps more than its share, and keeps all if it has no more than the final share."""
    members, subtopologies, _ = group
    total = sum(one.count for one in subtopologies.values())
    existing = set(flat({id_: range(one.count) for id_, one in subtopologies.items()}))
    for member_id, target in assign(members, subtopologies).targets.items():
        before = set(flat(members[member_id].active)) & existing
        kept = before & set(flat(target.active))
        assert len(kept) <= -(-total // len(members))
        if len(before) <= total // len(members):
            assert kept == before


@some
@any_group
def test_active_tasks_of_single_threaded_processes_differ_by_at_most_one(
    group: tuple[Members, Subtopologies, int],
) -> None:
    members, subtopologies, _ = group
    alone = {id_: TaskMember(id_, member.active, member.standby) for id_, member in members.items()}
    counts = [len(list(flat(target.active))) for target in assign(alone, subtopologies).targets.values()]
    assert max(counts) - min(counts) <= 1


@some
@any_group
def test_order_of_the_input_does_not_matter(group: tuple[Members, Subtopologies, int]) -> None:
    members, subtopologies, standbys = group
    turned = dict(list(members.items())[::-1]), dict(list(subtopologies.items())[::-1])
    assert assign(*turned, standbys) == assign(members, subtopologies, standbys)


@some
@any_group
def test_active_tasks_of_a_finished_rebalance_stay(group: tuple[Members, Subtopologies, int]) -> None:
    members, subtopologies, _ = group
    alone = {id_: TaskMember(id_, member.active, member.standby) for id_, member in members.items()}
    first = assign(alone, subtopologies)
    settled = {id_: TaskMember(id_, target.active, target.standby) for id_, target in first.targets.items()}
    assert assign(settled, subtopologies) == first


def test_tasks_without_members_are_refused() -> None:
    with pytest.raises(ValueError, match="no member"):
        assign({}, {"0": SubtopologyTasks(1, False)})
    assert assign({}, {}).targets == {}


class Compared(int):
    """An offset that counts its comparisons."""

    count = 0

    def __neg__(self) -> "Compared":
        return Compared(super().__neg__())

    def __lt__(self, other: int) -> bool:
        Compared.count += 1
        return super().__lt__(other)


def comparisons(standbys: int) -> int:
    """Return the comparisons of offsets for a task of which eight processes have reported one."""
    members = {f"{n}": TaskMember(f"p{n}", offsets={("0", 0): Compared(n * 5 % 8)}) for n in range(8)}
    Compared.count = 0
    assign(members, {"0": SubtopologyTasks(1, True)}, standbys)
    return Compared.count


def test_offsets_of_a_task_are_sorted_once_for_all_its_copies() -> None:
    assert comparisons(4) == comparisons(0) > 0
