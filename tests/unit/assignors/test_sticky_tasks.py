"""The sticky task assignor: its promises to any group, and examples that were answered by Kafka's own."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.sticky_tasks import (
    NoMembersError,
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


def as_members(given: TaskAssignment, members: Members) -> dict[str, TaskMember]:
    """Return the members with the tasks of the target, as after a finished rebalance."""
    return {
        member_id: TaskMember(members[member_id].process_id, target.active, target.standby)
        for member_id, target in given.targets.items()
    }


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
def test_each_task_is_active_at_exactly_one_member(group: tuple[Members, Subtopologies, int]) -> None:
    members, subtopologies, standbys = group
    found = assign(members, subtopologies, standbys)
    active = Counter(task for target in found.targets.values() for task in flat(target.active))
    assert active == Counter(flat({id_: range(one.count) for id_, one in subtopologies.items()}))
    assert found.targets.keys() == members.keys()


@some
@any_group
def test_stateful_tasks_have_their_standbys_as_far_as_processes_suffice(
    group: tuple[Members, Subtopologies, int],
) -> None:
    members, subtopologies, standbys = group
    found = assign(members, subtopologies, standbys)
    copies = Counter(task for target in found.targets.values() for task in flat(target.standby))
    possible = min(standbys, len({member.process_id for member in members.values()}) - 1)
    stateful = {id_: range(one.count) for id_, one in subtopologies.items() if one.is_stateful}
    assert copies == +Counter(dict.fromkeys(flat(stateful), possible))
    missing = standbys - possible
    assert found.missing_standbys == (dict.fromkeys(flat(stateful), missing) if missing else {})


@some
@any_group
def test_a_process_has_a_task_at_most_once(group: tuple[Members, Subtopologies, int]) -> None:
    members, subtopologies, standbys = group
    seen: Counter[tuple[str, Task]] = Counter()
    for member_id, target in assign(members, subtopologies, standbys).targets.items():
        process_id = members[member_id].process_id
        seen.update((process_id, task) for tasks in (target.active, target.standby) for task in flat(tasks))
    assert all(count == 1 for count in seen.values())


@some
@any_group
def test_sticky_active_tasks_stay_within_the_first_quota(group: tuple[Members, Subtopologies, int]) -> None:
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
def test_members_of_equal_processes_differ_by_at_most_one_task(
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
    assert assign(as_members(first, alone), subtopologies) == first


def test_tasks_without_members_are_refused() -> None:
    with pytest.raises(NoMembersError):
        assign({}, {"0": SubtopologyTasks(1, False)})
    assert assign({}, {}).targets == {}


# Timeline SL26: answers of Kafka's own assignor.


def of(
    process: str, active: str = "", standby: str = "", offsets: Mapping[int, int] | None = None
) -> TaskMember:
    return TaskMember(
        process, tasks(active), tasks(standby), {("0", number): at for number, at in (offsets or {}).items()}
    )


def tasks(numbers: str) -> dict[str, list[int]]:
    return {"0": [int(number) for number in numbers]} if numbers else {}


def answer(members: Members, count: int, standbys: int = 0) -> dict[str, tuple[str, str]]:
    found = assign(members, {"0": SubtopologyTasks(count, standbys > 0)}, standbys)
    return {
        id_: ("".join(map(str, target.active.get("0", []))), "".join(map(str, target.standby.get("0", []))))
        for id_, target in found.targets.items()
    }


def sizes(members: Members, count: int) -> list[int]:
    return sorted(len(active) for active, _ in answer(members, count).values())


def test_threads_of_processes_get_equal_shares() -> None:
    assert sizes({"a": of("p1"), "b": of("p1"), "c": of("p2")}, 6) == [2, 2, 2]


def test_a_member_keeps_the_lowest_partitions() -> None:
    assert answer({"a": of("a", "012345"), "b": of("b")}, 6) == {"a": ("012", ""), "b": ("345", "")}
    assert sizes({"a": of("a", "01234"), "b": of("b"), "c": of("c")}, 5) == [1, 2, 2]
    assert answer({"a": of("a", "01234"), "b": of("b"), "c": of("c")}, 5)["a"] == ("01", "")


def test_a_kept_task_is_copied_where_it_was() -> None:
    assert answer({"a": of("a", "01"), "b": of("b")}, 2, 1) == {"a": ("0", "1"), "b": ("1", "0")}


def test_two_processes_have_one_standby_of_two() -> None:
    found = assign({"a": of("a"), "b": of("b")}, {"0": SubtopologyTasks(4, True)}, 2)
    assert found.missing_standbys == {("0", number): 1 for number in range(4)}


def test_reported_offsets_attract_tasks() -> None:
    members = {"a": of("a", offsets={0: 1, 1: 1, 2: 5}), "b": of("b", offsets={2: 50, 3: 1})}
    assert answer(members, 4) == {"a": ("01", ""), "b": ("23", "")}


def test_a_member_alone_gets_its_standbys_as_active_tasks() -> None:
    assert answer({"a": of("a", "01", "23")}, 4, 1) == {"a": ("0123", "")}


def test_partitions_of_several_subtopologies_stay_together() -> None:
    all_of_them = {"0": range(4), "1": range(4)}
    members = {"a": TaskMember("a", all_of_them), "b": TaskMember("b")}
    found = assign(members, {"0": SubtopologyTasks(4, False), "1": SubtopologyTasks(4, False)})
    assert found.targets["a"].active == {"0": [0, 1], "1": [0, 1]}


def test_third_process_takes_over_as_in_kafka() -> None:
    """Timeline SL12: the third process gets a task of the second, and copies remain where state is."""
    members = {"a": of("p1", "01", "23"), "b": of("p2", "23", "01"), "c": of("p3")}
    assert answer(members, 4, 1) == {"a": ("01", "2"), "b": ("2", "13"), "c": ("3", "0")}


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
