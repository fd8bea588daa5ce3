"""The notes of what a Python worker handles, which it leaves behind when it dies."""

from dataclasses import replace
from pathlib import Path

import pytest

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from streaming.query.operator import take_unfinished_notes
from tests.harness.operator_call import OPERATOR, call, spark_state
from tests.spark.log import LAYOUT, T0, Log, heartbeat


def test_killed_worker_leaves_the_request_it_was_handling(tmp_path: Path) -> None:
    """As by SIGKILL: nothing of the call runs any more."""
    prefix = str(tmp_path / "under-way")

    class Killed(BaseException):
        pass

    def deadly(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        if group_id == "deadly":
            raise Killed
        return step(group, group_id, event, now_ms, config)

    log = Log()
    records, _ = log.stable_member(T0, "g")
    traced = replace(OPERATOR, step=deadly, notes_prefix=prefix)
    call(records, spark_state(), operator=traced)
    assert take_unfinished_notes(prefix) == [], "a call that comes to its end leaves nothing"
    deadly_record = log.request(T0 + 1, heartbeat("deadly", "m"))
    with pytest.raises(Killed):
        call([*records, deadly_record], spark_state(), operator=traced)
    record = f"{LAYOUT.requests_topic}-{deadly_record.partition}-{deadly_record.offset}"
    assert take_unfinished_notes(prefix) == [f"record {record}"]
    assert take_unfinished_notes(prefix) == [], "the notes are removed"
