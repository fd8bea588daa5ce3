"""A request's principal is in the history entries that the request caused, and decides nothing."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.messages import Request
from state.config import CoordinatorConfig
from state.kafka.context import Effects
from state.timeline import Row, Timeline
from tests.harness.batches import encode as encoded
from tests.harness.common import kafka_effects
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS, realise, script

CONFIG = CoordinatorConfig()


@given(st.integers(0, 2**32 - 1))
@examples(30)
def test_a_principal_changes_nothing_but_the_entries_that_name_it(seed: int) -> None:
    rows = realise(script(seed, 100), CONFIG)
    named = [_naming(row, f"User:{number % 3}") for number, row in enumerate(rows)]
    who = {row.request_id: principal_of(row) for row in named}
    for group_id in GROUPS:
        plain, told = _played(group_id, rows), _played(group_id, named)
        for effects, with_principals in zip(plain, told, strict=True):
            history = [replace(entry, principal=who.get(entry.cause)) for entry in effects.history]
            assert replace(with_principals, group=None) == replace(effects, group=None, history=history)
        assert encoded(told[-1].group) == encoded(plain[-1].group) if plain else not told


def _naming(row: Row, principal: str) -> Row:
    if not isinstance(row.request, Request):
        return row
    return replace(row, request=replace(row.request, principal=principal))


def principal_of(row: Row) -> str | None:
    return row.request.principal if isinstance(row.request, Request) else None


def _played(group_id: str, rows: Sequence[Row]) -> list[Effects]:
    timeline = Timeline(group_id, None, CONFIG)
    for row in rows:
        if row.request.group_id == group_id:
            timeline.apply(row)
    timeline.fire_until(rows[-1].at_ms + 100_000)
    return kafka_effects(timeline.drain_effects())
