"""The tables of what was found of real consumers, and the truth that lags in time are compared with."""

from types import SimpleNamespace
from typing import Any, cast

from bench.lag_play import Came, Played
from bench.lag_times import ALERT, MESSAGE, METRICS, PAGE, Seen, table


def turned(story: str, turn_s: float) -> Played:
    played = Played(story, f"own-{story}", "127.0.0.1:9")
    played.turn_s = turn_s
    return played


def test_what_was_found_is_in_seconds_from_the_turn_of_its_group() -> None:
    seen = Seen()
    for where, at_s in ((PAGE, 229.4), (METRICS, 231.0), (MESSAGE, 230.2)):
        seen.first_s["own-stuck", where, "stuck"] = at_s
    seen.first_s["own-stuck", ALERT, "no-owner"] = 500.0
    assert list(table([turned("stuck", 100.0), turned("well", 100.1)], seen))[2:] == [
        "| own-stuck | stuck | 129 s | 131 s |  | 130 s |",
        "| own-stuck | no-owner |  |  | 400 s |  |",
        "| own-well | nothing |  |  |  |  |",
    ]


def test_the_truth_is_known_of_records_that_were_acknowledged() -> None:
    came = Came()
    for offset in range(3):
        came.take(None, cast(Any, SimpleNamespace(topic=lambda: "orders", offset=lambda at=offset: at)))
    lag_ms = came.lag_ms("orders", 0, 3)
    assert lag_ms is not None and 0 <= lag_ms < 60_000
    assert came.lag_ms("orders", 0, 1) == 0
    assert came.lag_ms("orders", 0, 4) is came.lag_ms("orders", 3, 1) is None
