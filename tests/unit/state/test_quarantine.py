"""Time stands still for a quarantined group: the release removes no member that the quarantine kept."""

from collections.abc import Sequence

import pytest

from state.config import CoordinatorConfig
from state.dispatch import AnyEvent
from state.inputs import Outage
from state.kafka.classic_group import ClassicGroup
from state.kafka.configs_only import ConfigsOnly
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.requests import Heartbeat, JoinGroup, Protocol
from state.kafka.timers import DeadlineReached, TimerKind
from state.messages import ReleaseGroup
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.common import Common
from tests.harness.scenario_player import ScenarioPlayer

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
TEN_MINUTES_MS = 600_000
COMMON: Common = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 3,
    "client_id": "m",
}


def join(session_timeout_ms: int, *, member_id: str = "", api_version: int = 3) -> JoinGroup:
    return JoinGroup(
        **{**COMMON, "api_version": api_version},  # type: ignore[arg-type]
        member_id=member_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[Protocol("range")],
    )


def quarantined(kind: TimerKind, outages: Sequence[Outage] = ()) -> tuple[Timeline, int]:
    """Return a quarantined group in a rebalance, and the time at which its next deadline of this kind raised.

    The group has two members, one of them from the generation before, and a pending id.
    """
    failed: list[AnyEvent] = []

    def fails(event: AnyEvent) -> bool:
        if failed or not isinstance(event, DeadlineReached):
            return False
        failed.extend([event] if event.kind is kind and event.deadline_ms > 0 else [])
        return bool(failed)

    timeline = Timeline("g", None, CONFIG, step=batches.failing_step(fails), outages=outages)
    session_ms = 40_000 if kind is TimerKind.HEARTBEAT else 120_000
    timeline.apply(Row(0, "requests-0-0", join(session_ms)))
    timeline.fire_until(0)
    timeline.apply(Row(1_000, "requests-0-1", join(session_ms)))
    timeline.apply(Row(2_000, "requests-0-2", join(100_000, api_version=9)))
    timeline.fire_until(61_000)
    group = timeline.group
    assert isinstance(group, ClassicGroup)
    assert group.quarantined is not None
    assert len(timeline.faults) == 1
    timeline.drain_effects()
    return timeline, group.clock_ms


def release(timeline: Timeline, at_ms: int) -> ClassicGroup:
    timeline.apply(Row(at_ms, "requests-0-9", ReleaseGroup(**COMMON)))
    assert isinstance(timeline.group, ClassicGroup)
    return timeline.group


def test_deadlines_have_as_long_to_go_after_a_quarantine_as_before() -> None:
    timeline, at_ms = quarantined(TimerKind.HEARTBEAT)
    assert at_ms == 40_000
    member_id = next(iter(timeline.group.members))  # type: ignore[union-attr]
    beat = Heartbeat(**COMMON, generation_id=1, member_id=member_id)
    timeline.apply(Row(at_ms + 5_000, "requests-0-3", beat))
    group = release(timeline, at_ms + TEN_MINUTES_MS)
    assert group.join_phase is not None
    assert group.join_phase.deadline_ms == 61_000 + TEN_MINUTES_MS
    assert {p.heartbeat_deadline_ms for p in group.pending_members.values()} == {102_000 + TEN_MINUTES_MS}
    assert {m.heartbeat_deadline_ms for m in group.members.values()} == {at_ms + TEN_MINUTES_MS + 40_000}
    assert len(group.members) == 2


def test_an_outage_within_a_quarantine_is_not_counted_twice() -> None:
    timeline, at_ms = quarantined(TimerKind.HEARTBEAT, [Outage(50_000, 350_000)])
    group = release(timeline, at_ms + TEN_MINUTES_MS)
    assert group.join_phase is not None
    assert group.join_phase.deadline_ms == 61_000 + TEN_MINUTES_MS


@pytest.mark.parametrize("within_ms", [0, 59_000])
def test_members_that_come_back_after_the_join_deadline_raised_are_not_evicted(within_ms: int) -> None:
    timeline, at_ms = quarantined(TimerKind.JOIN)
    assert at_ms == 61_000
    group = release(timeline, at_ms + TEN_MINUTES_MS)
    members = list(group.members)
    assert len(members) == 2
    back_ms = at_ms + TEN_MINUTES_MS + within_ms
    for n, member_id in enumerate(members):
        timeline.apply(Row(back_ms, f"requests-0-1{n}", join(120_000, member_id=member_id)))
    assert isinstance(timeline.group, ClassicGroup)
    assert list(timeline.group.members) == members


@pytest.mark.parametrize(
    "commands",
    [
        # A has to revoke partitions within 20 s, and does not.
        ["A e0 names[foo] timeout=20s", "sleep 2s", "B e0 names[foo]", "A e2 => e2 [0,1]"],
        # X has to sync within 20 s, and does not.
        ["A e0 names[foo]", "sleep 2s", "join X api=3 topics=foo session=45s rebalance=20s"],
    ],
)
def test_a_deadline_of_a_member_that_raised_is_not_due_at_once_after_the_release(
    commands: list[str],
) -> None:
    world = ScenarioPlayer()
    for command in ["topics foo=4", *commands, "fail deadline", "at 22s"]:
        world.run(command)
    group = world.any_group()
    assert isinstance(group, ConsumerGroup)
    assert group.quarantined is not None
    members = list(group.members)
    for command in ["at 40s", "release operator", "at 59999ms"]:
        world.run(command)
    after = world.any_group()
    assert isinstance(after, ConsumerGroup)
    assert list(after.members) == members
    world.run("at 60s")  # the time of the deadline is over again
    assert len(after.members) < len(members)


def test_a_takeover_that_raised_quarantines_no_settings_without_a_group() -> None:
    configs = ConfigsOnly("g", "requests-0-0", 0, {"consumer.session.timeout.ms": 50_000})
    step = batches.failing_step(lambda event: isinstance(event, Outage))
    timeline = Timeline("g", configs, CONFIG, step=step, outages=[Outage(1_000, 2_000)])
    timeline.fire_until(3_000)
    assert len(timeline.faults) == 1
    assert isinstance(timeline.group, ConfigsOnly)
    assert timeline.group.configs == configs.configs
