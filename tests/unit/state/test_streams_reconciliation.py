"""Reconciliation of one member of a streams group, with states that no assignor of Kafka 4.4 leads to:
warm-up tasks. Each case names its row.
"""

from kafka_why.contract.kafka.history import MemberState
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.streams.reconciliation import reconcile
from state.kafka.streams_group import RoleTasks, StreamsGroup, StreamsGroupMember

T0, T1, T2 = ("0", 0), ("0", 1), ("0", 2)
NOTHING = RoleTasks()
UNREVOKED, UNRELEASED = MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS


class World:
    """A group whose target has epoch 3, and its member `a` of process `p`."""

    def __init__(self, assigned: RoleTasks, target: RoleTasks, epoch: int = 2) -> None:
        self.group = StreamsGroup("g", "requests-0-0", group_epoch=3, assignment_epoch=3)
        self.member = self.add("a", "p", assigned, epoch)
        self.group.target["a"] = target

    def add(
        self, member_id: str, process: str, assigned: RoleTasks, epoch: int = 3, pending: RoleTasks = NOTHING
    ) -> StreamsGroupMember:
        member = StreamsGroupMember(member_id, process_id=process, member_epoch=epoch, rebalance_timeout_ms=1)
        self.group.add(member)
        self.group.assign(member, assigned, pending, dict.fromkeys([*assigned.active, *pending.active], 2))
        if pending:
            member.state = UNREVOKED
        return member

    def beat(self, owned: RoleTasks | None = None) -> list[str]:
        """Reconcile the member, and return the rows that applied."""
        context = StepContext(self.group, "g", "requests-0-1", 0, CoordinatorConfig())
        reconcile(context, self.group, self.member, owned)
        return context.rules

    @property
    def result(self) -> tuple[int, MemberState, RoleTasks, RoleTasks]:
        return self.member.member_epoch, self.member.state, self.member.assigned, self.member.pending


def test_standby_becomes_a_warm_up_at_once() -> None:
    world = World(RoleTasks(standby=[T0]), RoleTasks(warm_up=[T0]))
    assert "KSR12" in world.beat()
    assert world.result == (3, MemberState.STABLE, RoleTasks(warm_up=[T0]), NOTHING)


def test_warm_up_becomes_a_standby_at_once() -> None:
    world = World(RoleTasks(warm_up=[T0]), RoleTasks(standby=[T0]))
    assert "KSR12" in world.beat()
    assert world.result == (3, MemberState.STABLE, RoleTasks(standby=[T0]), NOTHING)


def test_warm_up_becomes_active_in_one_answer() -> None:
    world = World(RoleTasks(warm_up=[T0]), RoleTasks(active=[T0]))
    assert "KSR13" in world.beat()
    assert world.result == (3, MemberState.STABLE, RoleTasks(active=[T0]), NOTHING)


def test_warm_up_stays_open_while_another_member_runs_the_task() -> None:
    world = World(RoleTasks(warm_up=[T0]), RoleTasks(active=[T0]))
    world.add("b", "q", RoleTasks(active=[T0]))
    world.beat()
    assert world.result == (3, UNRELEASED, RoleTasks(warm_up=[T0]), NOTHING)


def test_active_task_is_closed_before_it_is_a_warm_up() -> None:
    """Row KSR14."""
    world = World(RoleTasks(active=[T0]), RoleTasks(warm_up=[T0]))
    world.beat()
    assert world.result == (2, UNREVOKED, NOTHING, RoleTasks(active=[T0]))
    world.beat(NOTHING)
    assert world.result == (3, MemberState.STABLE, RoleTasks(warm_up=[T0]), NOTHING)


def test_tasks_of_a_sibling_block_every_role() -> None:
    """Rows KSR6 to KSR8."""
    for held in (RoleTasks(active=[T0]), RoleTasks(standby=[T0]), RoleTasks(warm_up=[T0])):
        for wanted in (RoleTasks(active=[T0]), RoleTasks(standby=[T0]), RoleTasks(warm_up=[T0])):
            world = World(NOTHING, wanted)
            world.add("b", "p", held)
            world.beat()
            assert world.result == (3, UNRELEASED, NOTHING, NOTHING)
            other = World(NOTHING, wanted)
            other.add("b", "q", held)
            other.beat()
            is_blocked = bool(held.active) and bool(wanted.active)
            assert other.member.state is (UNRELEASED if is_blocked else MemberState.STABLE)


def test_pending_task_of_another_process_blocks_an_active_one() -> None:
    world = World(NOTHING, RoleTasks(active=[T0]))
    world.add("b", "q", NOTHING, pending=RoleTasks(active=[T0]))
    world.beat()
    assert world.result == (3, UNRELEASED, NOTHING, NOTHING)


def test_own_pending_task_that_is_wanted_again_is_given_at_its_acknowledgement() -> None:
    """Row KSB12: Kafka gives it with the next heartbeat."""
    world = World(NOTHING, NOTHING)
    world.group.remove(world.member)
    world.member = world.add("a", "p", RoleTasks(active=[T1]), epoch=2, pending=RoleTasks(active=[T0]))
    world.group.target["a"] = RoleTasks(active=[T0, T1])
    world.beat(RoleTasks(active=[T0]))
    assert world.result == (2, UNREVOKED, RoleTasks(active=[T1]), RoleTasks(active=[T0]))
    world.beat(RoleTasks(active=[T1]))
    assert world.result == (3, MemberState.STABLE, RoleTasks(active=[T0, T1]), NOTHING)
    assert world.member.assignment_epochs == {T0: 3, T1: 2}


def test_owned_tasks_count_only_in_their_role() -> None:
    """Row KSR2: a standby of a task that is given up as active does not hold the member back."""
    world = World(NOTHING, NOTHING)
    world.group.remove(world.member)
    world.member = world.add("a", "p", RoleTasks(standby=[T0]), epoch=2, pending=RoleTasks(active=[T0]))
    world.group.target["a"] = RoleTasks(standby=[T0])
    world.beat(RoleTasks(standby=[T0]))
    assert world.result == (3, MemberState.STABLE, RoleTasks(standby=[T0]), NOTHING)


def test_revocation_of_a_standby_alone_has_a_timer() -> None:
    """Row KSR20."""
    world = World(RoleTasks(active=[T0], standby=[T1, T2]), RoleTasks(active=[T0], standby=[T1]))
    world.beat()
    assert world.result == (2, UNREVOKED, RoleTasks(active=[T0], standby=[T1]), RoleTasks(standby=[T2]))
    assert world.member.rebalance_deadline_ms == 1


def test_promotion_waits_while_other_tasks_are_given_up() -> None:
    """Row KSR13."""
    world = World(RoleTasks(active=[T1], standby=[T0]), RoleTasks(active=[T0]))
    world.beat()
    assert world.result == (2, UNREVOKED, RoleTasks(standby=[T0]), RoleTasks(active=[T1]))
    world.beat(RoleTasks(standby=[T0]))
    assert world.result == (3, MemberState.STABLE, RoleTasks(active=[T0]), NOTHING)
