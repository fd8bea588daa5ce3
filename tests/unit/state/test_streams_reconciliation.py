"""Reconciliation of one member of a streams group, with states that no assignor of Kafka 4.4 leads to:
warm-up tasks.
"""

import re

import pytest

from kafka_why.contract.kafka.history import MemberState
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.streams.reconciliation import reconcile
from state.kafka.streams_group import RoleTasks, StreamsGroup, StreamsGroupMember
from tests.harness import streams_story

NONE = "not reported"


def tasks(text: str) -> RoleTasks:
    """Return the tasks of subtopology 0: `A[0] S[1,2]`."""
    of_role = {
        role: [("0", int(number)) for number in numbers.split(",")]
        for role, numbers in re.findall(r"([ASW])\[([\d,]+)\]", text)
    }
    return RoleTasks(*(of_role.get(role, []) for role in "ASW"))


def add(group: StreamsGroup, member_id: str, process: str, has: str, epoch: int) -> StreamsGroupMember:
    """Add a member. `has` are its tasks and, behind a bar, those that it has to give up."""
    assigned, pending = map(tasks, has.partition("|")[::2])
    member = StreamsGroupMember(member_id, process_id=process, member_epoch=epoch, rebalance_timeout_ms=1)
    group.add(member)
    group.assign(member, assigned, pending, dict.fromkeys([*assigned.active, *pending.active], 2))
    if pending:
        member.state = MemberState.UNREVOKED_PARTITIONS
    return member


def check(has: str, target: str, other: str, *steps: str) -> list[str]:
    """Reconcile member `a` of process `p` from epoch 2 to its target of epoch 3, and return the rows that
    applied. Each step is the tasks that it reports and what is expected of it after that. `other` is the
    process and the tasks of another member, or "".
    """
    group = StreamsGroup("g", "requests-0-0", group_epoch=3, assignment_epoch=3, target={"a": tasks(target)})
    member = add(group, "a", "p", has, 2)
    if other:
        add(group, "b", other[0], other[1:], 3)
    rows: list[str] = []
    for step in steps:
        owned, _, expected = step.partition(" => ")
        context = StepContext(group, "g", "requests-0-1", 0, CoordinatorConfig())
        reconcile(context, group, member, None if owned == NONE else tasks(owned))
        streams_story.check(expected, streams_story.of_member(group, member))
        rows += context.rules
    return rows


@pytest.mark.parametrize(
    ("row", "has", "target", "other", "steps"),
    [
        ("KSR12", "S[0]", "W[0]", "", [f"{NONE} => e3 STABLE S[] W[0]"]),
        ("KSR12", "W[0]", "S[0]", "", [f"{NONE} => e3 STABLE S[0] W[]"]),
        ("KSR13", "W[0]", "A[0]", "", [f"{NONE} => e3 STABLE A[0] W[]"]),
        # A warm-up stays open while another member runs the task.
        ("KSR13", "W[0]", "A[0]", "q A[0]", [f"{NONE} => e3 UNRELEASED A[] W[0]"]),
        # An active task is closed before it is a warm-up (row KSR14).
        ("KSR15", "A[0]", "W[0]", "", [f"{NONE} => e2 UNREVOKED A[] pendA[0]", " => e3 STABLE W[0] pendA[]"]),
        # A promotion waits while other tasks are given up.
        (
            "KSR13",
            "A[1] S[0]",
            "A[0]",
            "",
            [f"{NONE} => e2 UNREVOKED A[] S[0] pendA[1]", "S[0] => e3 STABLE A[0] S[]"],
        ),
        ("KSR17", "", "A[0]", "q|A[0]", [f"{NONE} => e3 UNRELEASED A[]"]),
        # Unlike Kafka (KSB12), an own pending task that is wanted again is given at its acknowledgement.
        (
            "KSR3",
            "A[1]|A[0]",
            "A[0,1]",
            "",
            ["A[0] => e2 UNREVOKED A[1] pendA[0]", "A[1] => e3 STABLE A[0,1] epochs[0@3 1@2]"],
        ),
        # A standby of a task that is given up as active does not hold the member back.
        ("KSR3", "S[0]|A[0]", "S[0]", "", ["S[0] => e3 STABLE S[0] pendA[]"]),
        # The revocation of a standby alone has a timer (row KSR20).
        ("KSM2", "A[0] S[1,2]", "A[0] S[1]", "", [f"{NONE} => e2 UNREVOKED S[1] pendS[2] rebalance@1ms"]),
    ],
)
def test_member_moves_step_by_step(row: str, has: str, target: str, other: str, steps: list[str]) -> None:
    assert row in check(has, target, other, *steps)


@pytest.mark.parametrize("held", list("ASW"))
@pytest.mark.parametrize("wanted", list("ASW"))
def test_tasks_of_a_sibling_block_every_role(held: str, wanted: str) -> None:
    """Rows KSR6 to KSR8. Those of another process block only if both roles are active."""
    check("", f"{wanted}[0]", f"p {held}[0]", f"{NONE} => e3 UNRELEASED {wanted}[]")
    is_free = (held, wanted) != ("A", "A")
    expected = f"STABLE {wanted}[0]" if is_free else f"UNRELEASED {wanted}[]"
    check("", f"{wanted}[0]", f"q {held}[0]", f"{NONE} => e3 {expected}")
