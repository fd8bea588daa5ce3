"""The configuration changes at a time: each step uses the one in force at its own time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kafka_why.contract.rocketmq.requests import MessageModel, RegisterConsumer
from state.config import BrokerConfig, ConfigChange, Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Failed, Outage, Received
from state.timeline import NEVER_MS, Period, Periods, Row, Timeline

# A connection is scanned at the first multiple of 10 s after it was silent for this long.
SLOW = CoordinatorConfig(rocketmq=BrokerConfig(channel_expired_timeout_ms=120_000))
FAST = CoordinatorConfig(rocketmq=BrokerConfig(channel_expired_timeout_ms=20_000))
NAMES = {id(SLOW): "slow", id(FAST): "fast"}
CHANGE_MS = 50_000
TO_FAST, TO_SLOW = [ConfigChange(CHANGE_MS, FAST)], [ConfigChange(CHANGE_MS, SLOW)]
OUTAGE = Outage(CHANGE_MS, 90_000)

Taken = tuple[str, int, str]
BEAT, FIRE, WAKE = "beat", "fire", "wake"


def taken(
    config: CoordinatorConfig,
    changes: Sequence[ConfigChange],
    moves: Sequence[tuple[str, int]],
    outages: Sequence[Outage] = (),
) -> list[Taken]:
    """Return the steps of group g: what, when, and under which configuration. WAKE goes on from the stored
    group.
    """
    steps: list[Taken] = []

    def noted(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        name = event.request_id if isinstance(event, Received | Failed) else str(event)
        steps.append((name, now_ms, NAMES[id(config)]))
        if name == "fails" and isinstance(event, Received):
            raise ValueError("told to")
        return step(group, group_id, event, now_ms, config)

    timeline = Timeline("g", None, config, step=noted, changes=changes, outages=outages)
    for move, at_ms in moves:
        if move == FIRE:
            timeline.fire_until(at_ms)
        elif move == WAKE:
            group = timeline.group
            timeline = Timeline("g", group, config, step=noted, changes=changes, outages=outages)
        else:
            request = RegisterConsumer(
                group_id="g",
                connection="c1",
                client_id="A",
                correlation_id="",
                reply_partition=0,
                message_model=MessageModel.CLUSTERING,
            )
            timeline.apply(Row(at_ms, move, request))
    return steps


PAST, LATER = (FIRE, CHANGE_MS + 9), (FIRE, CHANGE_MS + 11_000)
OVERDUE = ("scan at 30000", CHANGE_MS + 1, "fast")
BEFORE_FAULT = [(BEAT, 0, "slow"), OVERDUE, (BEAT, 60_000, "fast")]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            taken(SLOW, TO_FAST, [(BEAT, CHANGE_MS - 1), (BEAT, CHANGE_MS), (BEAT, CHANGE_MS + 1)]),
            [(BEAT, CHANGE_MS - 1, "slow"), (BEAT, CHANGE_MS, "slow"), (BEAT, CHANGE_MS + 1, "fast")],
        ),
        (
            taken(FAST, TO_SLOW, [(BEAT, 0), (BEAT, CHANGE_MS + 1)]),
            [(BEAT, 0, "fast"), ("scan at 30000", 30_000, "fast"), (BEAT, CHANGE_MS + 1, "slow")],
        ),
        (taken(FAST, TO_SLOW, [(BEAT, 40_000), (FIRE, 169_999)]), [(BEAT, 40_000, "fast")]),
        (
            taken(FAST, TO_SLOW, [(BEAT, 40_000), (FIRE, 170_000)]),
            [(BEAT, 40_000, "fast"), ("scan at 170000", 170_000, "slow")],
        ),
        (taken(SLOW, TO_FAST, [(BEAT, 0), (FIRE, CHANGE_MS)]), [(BEAT, 0, "slow")]),
        (taken(SLOW, TO_FAST, [(BEAT, 0), (FIRE, CHANGE_MS + 1)]), [(BEAT, 0, "slow"), OVERDUE]),
        *(
            (
                taken(SLOW, TO_FAST, [(BEAT, 40_000), (FIRE, until_ms), (WAKE, 0), (FIRE, 200_000)]),
                [(BEAT, 40_000, "slow"), ("scan at 70000", 70_000, "fast")],
            )
            for until_ms in (CHANGE_MS, CHANGE_MS + 1, CHANGE_MS + 9)
        ),
        *(
            (
                taken(SLOW, TO_FAST, [(BEAT, 10_000), PAST, *wake, (BEAT, 30_000), LATER]),
                [
                    (BEAT, 10_000, "slow"),
                    ("scan at 40000", CHANGE_MS + 1, "fast"),
                    (BEAT, 30_000, "slow"),
                    ("scan at 60000", 60_000, "fast"),
                ],
            )
            for wake in ([], [(WAKE, 0)])
        ),
        (
            taken(SLOW, TO_FAST, [(BEAT, 60_000), (WAKE, 0), (BEAT, CHANGE_MS)]),
            [(BEAT, 60_000, "fast"), (BEAT, 60_000, "fast")],
        ),
        (
            taken(SLOW, TO_FAST, [(BEAT, 0), (FIRE, 89_999), (BEAT, 70_000), (FIRE, 200_000)], [OUTAGE]),
            [
                (BEAT, 0, "slow"),
                ("takeover at 90000", 90_000, "fast"),
                (BEAT, 90_000, "fast"),
                ("scan at 120000", 120_000, "fast"),
            ],
        ),
        (
            taken(
                SLOW,
                [ConfigChange(OUTAGE.until_ms, FAST)],
                [(BEAT, 40_000), (BEAT, 70_000), (BEAT, OUTAGE.until_ms), (BEAT, OUTAGE.until_ms + 1)],
                [OUTAGE],
            ),
            [
                (BEAT, 40_000, "slow"),
                ("takeover at 90000", 90_000, "slow"),
                (BEAT, 90_000, "slow"),
                (BEAT, 90_000, "slow"),
                (BEAT, 90_001, "fast"),
            ],
        ),
        # What is repeated to undo a step is under the configuration that it had.
        (
            taken(SLOW, TO_FAST, [(BEAT, 0), (BEAT, 60_000), ("fails", 61_000)]),
            [*BEFORE_FAULT, ("fails", 61_000, "fast"), *BEFORE_FAULT, ("fails", 61_000, "fast")],
        ),
        (taken(SLOW, [*TO_FAST, ConfigChange(60_000, SLOW)], [(BEAT, 60_001)]), [(BEAT, 60_001, "slow")]),
    ],
    ids=[
        *("rows", "a deadline before the change", "a later deadline", "at its new time", "not yet overdue"),
        *(
            "overdue",
            "at rest until it",
            "at rest behind it",
            "long at rest",
            "an ended group",
            "after a wake",
        ),
        *("a late row", "an outage", "a change at an outage's end", "a fault", "a new group"),
    ],
)
def test_step_runs_under_the_configuration_of_its_time(steps: list[Taken], expected: list[Taken]) -> None:
    assert steps == expected


def test_last_configuration_change_of_a_time_counts() -> None:
    configs = Configs(SLOW, TO_FAST).each(lambda config: replace(config, group_max_size=3))
    assert configs == Configs(
        replace(SLOW, group_max_size=3), [ConfigChange(CHANGE_MS, replace(FAST, group_max_size=3))]
    )
    configs = Configs(SLOW, [ConfigChange(5, SLOW), ConfigChange(5, FAST)])
    assert [configs.at(at_ms) for at_ms in (5, 6)] == [SLOW, FAST]


def test_periods_are_split_at_outages_and_configuration_changes() -> None:
    periods = Periods(Configs(SLOW, [*TO_FAST, ConfigChange(95_000, SLOW)]), [OUTAGE])
    before = Period(SLOW, 0, CHANGE_MS, OUTAGE)
    between = Period(FAST, CHANGE_MS + 1, 95_000, None)
    last = Period(SLOW, 95_001, NEVER_MS, None)
    found = [periods.at(ms) for ms in (0, CHANGE_MS, 90_000, 95_000, 95_001)]
    assert found == [before, before, between, between, last]
    assert Periods(Configs(SLOW), ()).at(5) == Period(SLOW, 0, NEVER_MS, None)
