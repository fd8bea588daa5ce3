"""Groups with and without lag problems, as the metrics show them over half an hour.

Records and polls of the brokers are simulated second by second. Everything else is the code of the metrics.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kafka_why.lag.brokers import INTERVAL_S
from kafka_why.metrics.series import lag_gauges
from tests.harness.scraped import Scraped

GROUP, TOPIC, MEMBER = "orders", "purchases", "worker-1"
HELD = {MEMBER: [(TOPIC, 0)]}
TURN_S = 300
"""The second at which the stories begin to differ. Until then each group consumes 10 records a second, and
commits every 5 s.
"""
LENGTH_S = 2_100
SCRAPE_S = 10
PER_S = 10
COMMIT_S = 5

STUCK, FALLING_BEHIND, NO_OWNER = GAUGES = (
    "group_coordinator_stuck_partitions",
    "group_coordinator_partitions_falling_behind",
    "group_coordinator_partitions_without_owner",
)


@dataclass(frozen=True)
class Story:
    """The behaviour of a group and its producer. `end` and `offset` return the log's end and the group's
    offset at a second, and `commits` True if the group commits at a second. `leaves_s` is when the member
    leaves and rejoins.
    """

    end: Callable[[int], int] = lambda s: PER_S * s
    offset: Callable[[int], int] = lambda s: PER_S * s
    commits: Callable[[int], bool] = lambda s: True
    leaves_s: tuple[int, int] | None = None


def _until_turn(s: int) -> int:
    return PER_S * min(s, TURN_S)


STORIES = {
    "well": Story(),
    "stuck": Story(offset=_until_turn, commits=lambda s: s <= TURN_S),
    "poison record": Story(offset=_until_turn),
    "slow": Story(offset=lambda s: _until_turn(s) + PER_S * max(s - TURN_S, 0) // 2),
    "idle producer": Story(end=_until_turn, offset=_until_turn),
    "paused consumer": Story(end=_until_turn, offset=lambda s: _until_turn(s) - 50),
    "burst": Story(
        end=lambda s: PER_S * s + (20_000 if s > TURN_S else 0),
        offset=lambda s: PER_S * s + min(20 * max(s - TURN_S, 0), 20_000),
    ),
    "started again": Story(
        offset=lambda s: PER_S * (TURN_S if TURN_S <= s < TURN_S + 60 else s),
        commits=lambda s: not TURN_S <= s < TURN_S + 60,
        leaves_s=(TURN_S, TURN_S + 60),
    ),
    "no members": Story(offset=_until_turn, commits=lambda s: s < TURN_S, leaves_s=(TURN_S, LENGTH_S)),
}

Series = dict[str, list[float]]
"""The values of each gauge, one every SCRAPE_S."""


def recorded(story: Story) -> Series:
    """Play a story, and return the values of the gauges."""
    scraped, series = Scraped(), Series()
    scraped.group(GROUP, "Stable", MEMBER, held=HELD)
    for s in range(LENGTH_S):
        if story.leaves_s is not None and s in story.leaves_s:
            is_there = s == story.leaves_s[1]
            members = (MEMBER,) if is_there else ()
            state = "Stable" if is_there else "Empty"
            scraped.group(GROUP, state, *members, held=HELD if is_there else {}, since_ms=1000 * s)
        if s % COMMIT_S == 0 and story.commits(s):
            scraped.offset(GROUP, TOPIC, 0, max(story.offset(s), 0), 1000 * s)
        if s % INTERVAL_S == 0:
            # Half a second later, so that it is between two commits.
            scraped.set_log_ends(1000 * s + 500, {(TOPIC, 0): story.end(s)})
        if s % SCRAPE_S == 0:
            for metric in lag_gauges(scraped.metrics_state.numbers().lags or {}, with_members=False):
                if metric.name in GAUGES:
                    (sample,) = metric.samples
                    series.setdefault(metric.name, []).append(sample.value)
    return series


def found_after_s(values: list[float]) -> int | None:
    """Return the seconds from the problem's start, TURN_S, to the first scrape with it, or None."""
    first = next((number for number, value in enumerate(values) if value), None)
    return None if first is None else first * SCRAPE_S - TURN_S
