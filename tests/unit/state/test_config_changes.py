"""The configuration changes at a time: each step uses the one in force at its own time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from state.config import BrokerConfig, CoordinatorConfig
from state.configs import ConfigChange, Configs
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Failed, Outage, Received
from state.periods import NEVER_MS, Period, Periods
from state.rocketmq.requests import MessageModel, RegisterConsumer, SubscriptionData
from state.timeline import Row, Timeline

# A connection is scanned at the first multiple of 10 s after it was silent for this long.
SLOW = CoordinatorConfig(rocketmq=BrokerConfig(channel_expired_timeout_ms=120_000))
FAST = CoordinatorConfig(rocketmq=BrokerConfig(channel_expired_timeout_ms=20_000))
NAMES = {id(SLOW): "slow", id(FAST): "fast"}
CHANGE_MS = 50_000
TO_FAST, TO_SLOW = [ConfigChange(CHANGE_MS, FAST)], [ConfigChange(CHANGE_MS, SLOW)]

Taken = tuple[str, int, str]


class Run:
    """A timeline of group g whose steps are noted: what, when, and under which configuration."""

    def __init__(
        self,
        config: CoordinatorConfig,
        changes: Sequence[ConfigChange],
        outages: Sequence[Outage] = (),
        group: AnyGroup | None = None,
        fails: Callable[[AnyEvent], bool] = lambda _: False,
    ) -> None:
        self.taken: list[Taken] = []
        self._fails = fails
        self.timeline = Timeline("g", group, config, step=self._step, changes=changes, outages=outages)

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        self.taken.append((_name(event), now_ms, NAMES[id(config)]))
        if self._fails(event):
            raise ValueError("told to")
        return effects

    def beat(self, at_ms: int, request_id: str | None = None) -> list[Taken]:
        before = len(self.taken)
        subscriptions = (SubscriptionData("t"),)
        request = RegisterConsumer(
            group_id="g",
            connection="c1",
            client_id="A",
            correlation_id="",
            reply_partition=0,
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=subscriptions,
        )
        self.timeline.apply(Row(at_ms, request_id or f"beat at {at_ms}", request))
        return self.taken[before:]

    def fire_until(self, until_ms: int) -> list[Taken]:
        before = len(self.taken)
        self.timeline.fire_until(until_ms)
        return self.taken[before:]


def _name(event: AnyEvent) -> str:
    return event.request_id if isinstance(event, Received | Failed) else str(event)


def test_a_row_is_applied_under_the_configuration_of_its_time() -> None:
    run = Run(SLOW, TO_FAST)
    taken = [run.beat(at_ms)[-1] for at_ms in (CHANGE_MS - 1, CHANGE_MS, CHANGE_MS + 1)]
    assert [(at_ms, config) for _, at_ms, config in taken] == [
        (CHANGE_MS - 1, "slow"),
        (CHANGE_MS, "slow"),
        (CHANGE_MS + 1, "fast"),
    ]


def test_deadlines_until_the_change_fire_under_the_configuration_before() -> None:
    """The new configuration would not have fired it."""
    run = Run(FAST, TO_SLOW)
    run.beat(0)
    assert run.beat(CHANGE_MS + 1) == [
        ("scan at 30000", 30_000, "fast"),
        (f"beat at {CHANGE_MS + 1}", CHANGE_MS + 1, "slow"),
    ]


def test_deadlines_are_searched_anew_after_the_change() -> None:
    """One that is later under the new configuration does not fire at its old time."""
    run = Run(FAST, TO_SLOW)
    run.beat(40_000)
    assert run.fire_until(100_000) == []
    assert run.timeline.next_deadline_ms() == 170_000
    assert run.fire_until(170_000) == [("scan at 170000", 170_000, "slow")]


def test_what_is_overdue_under_the_new_configuration_fires_as_soon_as_it_is_in_force() -> None:
    run = Run(SLOW, TO_FAST)
    run.beat(0)
    assert run.fire_until(CHANGE_MS) == []
    assert run.fire_until(CHANGE_MS + 1) == [("scan at 30000", CHANGE_MS + 1, "fast")]


@pytest.mark.parametrize("until_ms", [CHANGE_MS, CHANGE_MS + 1, CHANGE_MS + 9])
def test_a_group_that_rests_goes_through_the_change_when_it_wakes(until_ms: int) -> None:
    """A call has fired what was due and has taken no step, so the group's clock is before the change."""
    run = Run(SLOW, TO_FAST)
    run.beat(40_000)
    assert run.fire_until(until_ms) == []
    woken = Run(SLOW, TO_FAST, group=run.timeline.group)
    assert woken.fire_until(200_000) == [("scan at 70000", 70_000, "fast")]


def test_a_group_whose_clock_is_after_the_change_is_under_the_new_one_at_once() -> None:
    run = Run(SLOW, [])
    run.beat(60_000)
    woken = Run(SLOW, TO_FAST, group=run.timeline.group)
    assert woken.timeline.next_deadline_ms() == 90_000
    assert woken.beat(CHANGE_MS) == [(f"beat at {CHANGE_MS}", 60_000, "fast")], "applied late, at the clock"


def test_a_late_row_of_a_group_that_took_no_step_since_is_under_the_old_configuration() -> None:
    """In one call as in two."""
    in_one, before = Run(SLOW, TO_FAST), Run(SLOW, TO_FAST)
    for run in (in_one, before):
        run.beat(10_000)
        run.fire_until(CHANGE_MS + 9)
    in_two = Run(SLOW, TO_FAST, group=before.timeline.group)
    for run in (in_one, in_two):
        assert run.beat(30_000) == [("beat at 30000", 30_000, "slow")]
        assert run.fire_until(CHANGE_MS + 11_000) == [("scan at 60000", 60_000, "fast")]


OUTAGE = Outage(CHANGE_MS, 90_000)


def test_the_takeover_after_an_outage_is_under_the_configuration_that_begins_with_it() -> None:
    """Deadlines before the outage are under the one before, and none fires in the outage."""
    run = Run(SLOW, TO_FAST, [OUTAGE])
    run.beat(0)
    assert run.fire_until(89_999) == []
    assert run.timeline.next_deadline_ms() == 130_000, "still that of the configuration before"
    assert run.beat(70_000) == [("takeover at 90000", 90_000, "fast"), ("beat at 70000", 90_000, "fast")]
    assert run.fire_until(200_000) == [("scan at 120000", 120_000, "fast")]


def test_a_change_at_the_end_of_an_outage_is_after_what_was_appended_in_it() -> None:
    run = Run(SLOW, [ConfigChange(OUTAGE.until_ms, FAST)], [OUTAGE])
    run.beat(40_000)
    taken = [*run.beat(70_000), *run.beat(OUTAGE.until_ms), *run.beat(OUTAGE.until_ms + 1)]
    assert [config for *_, config in taken] == ["slow", "slow", "slow", "fast"]


def test_what_is_repeated_to_undo_a_step_is_under_the_configuration_it_had() -> None:
    """The steps before and after the change, and that of the overdue scan."""
    run = Run(SLOW, TO_FAST, fails=lambda event: isinstance(event, Received) and event.request_id == "fails")
    run.beat(0)
    run.beat(60_000)
    first = list(run.taken)
    assert first == [
        ("beat at 0", 0, "slow"),
        ("scan at 30000", CHANGE_MS + 1, "fast"),
        ("beat at 60000", 60_000, "fast"),
    ]
    again = run.beat(61_000, "fails")
    assert again == [("fails", 61_000, "fast"), *first, ("fails", 61_000, "fast")]
    assert [fault.cause for fault in run.timeline.faults] == ["fails"]


def test_a_new_group_is_under_the_configuration_of_its_time() -> None:
    third = replace(FAST, group_max_size=3)
    NAMES[id(third)] = "third"
    changes = [*TO_FAST, ConfigChange(60_000, third)]
    for at_ms, config in ((CHANGE_MS, "slow"), (60_000, "fast"), (60_001, "third")):
        assert [taken[2] for taken in Run(SLOW, changes).beat(at_ms)] == [config]


def test_of_changes_after_the_same_time_the_last_one_counts() -> None:
    configs = Configs(SLOW, [ConfigChange(5, SLOW), ConfigChange(5, FAST)])
    assert [configs.at(at_ms) for at_ms in (5, 6)] == [SLOW, FAST]


def test_each_configuration_is_changed_at_its_time() -> None:
    configs = Configs(SLOW, TO_FAST).each(lambda config: replace(config, group_max_size=3))
    assert configs == Configs(
        replace(SLOW, group_max_size=3), [ConfigChange(CHANGE_MS, replace(FAST, group_max_size=3))]
    )


def test_periods_are_cut_at_outages_and_changes() -> None:
    periods = Periods(Configs(SLOW, [*TO_FAST, ConfigChange(95_000, SLOW)]), [OUTAGE])
    before = Period(SLOW, 0, CHANGE_MS, OUTAGE)
    between = Period(FAST, CHANGE_MS + 1, 95_000, None)
    last = Period(SLOW, 95_001, NEVER_MS, None)
    assert [periods.at(ms) for ms in (0, CHANGE_MS, 90_000, 95_000, 95_001)] == [
        before,
        before,
        between,
        between,
        last,
    ]
    assert Periods(Configs(SLOW), ()).at(5) == Period(SLOW, 0, NEVER_MS, None)
