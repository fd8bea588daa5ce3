"""The judge of docs/observed.md finds what is wrong in a report, by the records of a real broker."""

from typing import Any

import pytest
from msgspec import structs

from kafka_why.why.model import CauseKind
from kafka_why.why.report import Report, report
from kafka_why.wording import Clock
from tests.harness.observed_log import Watched, real_records
from tests.observed.judge import Judge, offsets_verdict
from tests.observed.lines import Class, Line, Source
from tests.observed.truth import Seen, Step, Truth

GROUP = "classic"
START_MS = 1_795_713_000_000
JOINED, GONE = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_GONE


def orders(*numbers: int) -> list[str]:
    return [f"orders:{number}" for number in numbers]


def truth() -> Truth:
    """Return what happened to the group of `tests/data/consumer_offsets_4_4.jsonl`."""
    steps = [
        Step(action="c1 starts", causes={JOINED: {"c1"}}, held={"c1": orders(0, 1, 2, 3)}),
        Step(action="c2 starts", causes={JOINED: {"c2"}}, held={"c1": orders(0, 1), "c2": orders(2, 3)}),
        Step(action="c2 leaves", causes={GONE: {"c2"}}, gone_how="left", held={"c1": orders(0, 1, 2, 3)}),
        Step(action="c1 leaves", causes={GONE: {"c1"}}, gone_how="left"),
    ]
    for step, began_ms in zip(steps, (480_700, 481_300, 482_900, 483_130), strict=True):
        step.began_ms = START_MS + began_ms
        step.ended_ms = step.began_ms + 200
    steps[2].commits_ms, steps[3].commits_ms = {"c2": START_MS + 482_579}, {"c1": START_MS + 483_116}
    return Truth(story=GROUP, clients="", group_id=GROUP, protocol="classic", assignor="range", steps=steps)


def wrong(happened: Truth) -> list[tuple[str, Line]]:
    verdicts = Judge(happened, observed(), Source.OBSERVE).verdicts()
    return [(it.action, it.line) for it in verdicts if it.class_ is Class.WRONG]


def observed() -> Report:
    history = Watched().take(real_records()).of(GROUP)
    return report(GROUP, history, now_ms=history[-1].at_ms)


def test_judge_accepts_a_correct_report() -> None:
    happened = truth()
    assert wrong(happened) == []
    verdicts = list(Judge(happened, observed(), Source.OBSERVE).verdicts())
    classes = {line: {it.class_ for it in verdicts if it.line is line} for line in Line}
    assert classes[Line.MOVED] == classes[Line.TIME] == classes[Line.MEMBERS] == {Class.EXACT}
    assert classes[Line.CAUSE] == {Class.INFERRED}
    assert classes[Line.HOW_GONE] == classes[Line.BEGINNING] == {Class.UNKNOWN}


@pytest.mark.parametrize(("late_ms", "class_"), [(40, Class.INFERRED), (90, Class.WRONG)])
def test_judge_accepts_a_rebalance_start_within_the_poll_interval(late_ms: int, class_: Class) -> None:
    """A member has ended some time before the rebalance for that is seen."""
    happened, told = truth(), observed()
    step, place = happened.steps[2], 2
    happened.seen.append(Seen(at_ms=step.began_ms, client_id="c2", event="ended", words=()))
    seen = structs.replace(
        told.rebalances[place],
        began_ms=step.began_ms + late_ms,
        began_within_ms=60,
        beginning_lost=False,
        preparing_ms=0,
    )
    rebalances = [seen if number == place else one for number, one in enumerate(told.rebalances)]
    verdicts = Judge(happened, structs.replace(told, rebalances=rebalances), Source.OBSERVE).verdicts()
    (found,) = [it.class_ for it in verdicts if it.line is Line.BEGINNING and it.action == step.action]
    assert found is class_


@pytest.mark.parametrize(
    ("source", "is_compacted"), [(Source.COMPACTED, True), (Source.TOPIC, False), (Source.POLLING, False)]
)
def test_judge_accepts_a_missing_rebalance_only_after_compaction(source: Source, is_compacted: bool) -> None:
    """Polls miss a rebalance whose members are those of before, and no other."""
    happened, told = truth(), observed()
    told = structs.replace(told, rebalances=[told.rebalances[0], *told.rebalances[2:]])
    whole_from_ms = happened.steps[2].began_ms if is_compacted else 0
    told.notes.append(f"has every record since {Clock().time(happened.steps[2].began_ms)}; of what is older")
    verdicts = Judge(happened, told, source, whole_from_ms=whole_from_ms).verdicts()
    found = [it.class_ for it in verdicts if it.action == "c2 starts"]
    assert found == [Class.UNKNOWN if is_compacted else Class.WRONG]


STEPS = truth().steps
AFTER = Step(action="c3 starts", causes={JOINED: {"c3"}}, began_ms=STEPS[-1].ended_ms + 1)
EARLY_MS = STEPS[2].began_ms - 90_000


def with_step(place: int, **fields: Any) -> dict[str, Any]:
    """Return the steps, of which one has other fields."""
    return {"steps": [*STEPS[:place], structs.replace(STEPS[place], **fields), *STEPS[place + 1 :]]}


@pytest.mark.parametrize(
    ("planted", "action", "line"),
    [
        (with_step(2, causes={GONE: {"c1"}}), "c2 leaves", Line.CAUSE),
        (with_step(1, causes={CauseKind.METADATA_CHANGED: {"c2"}}), "c2 starts", Line.CAUSE),
        (with_step(1, held={"c1": orders(0, 2), "c2": orders(1, 3)}), "c2 starts", Line.MOVED),
        (with_step(1, held={**STEPS[1].held, "c3": []}), "c2 starts", Line.MEMBERS),
        ({"assignor": "roundrobin"}, "c1 starts", Line.ASSIGNOR),
        (with_step(2, commits_ms={"c2": EARLY_MS}), "c2 leaves", Line.LAST_COMMIT),
        ({"steps": [*STEPS, AFTER]}, "c3 starts", Line.TIME),
        ({"steps": [STEPS[0], *STEPS[2:]]}, "c1 starts", Line.TIME),
        (with_step(1, generations={"c1": 3}), "c2 starts", Line.FORMED),
    ],
)
def test_judge_finds_each_error_planted_in_a_report(planted: dict[str, Any], action: str, line: Line) -> None:
    assert (action, line) in wrong(structs.replace(truth(), **planted))


def test_judge_rejects_a_report_with_an_aborted_transactions_offset() -> None:
    happened = truth()
    happened.offsets, happened.never_committed = {"orders:0": 5}, {"orders:0": 9}
    right, aborted, late = (
        [it.class_ for it in offsets_verdict(happened, {"orders:0": values})]
        for values in ([3, 5], [3, 9, 5], [3])
    )
    assert (right, aborted, late) == ([Class.EXACT], [Class.WRONG], [Class.WRONG])
