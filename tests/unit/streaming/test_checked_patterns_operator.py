"""Patterns whose topics are filtered, through the operator as Spark calls it: what a group has to ask for
outlives the batch, and no cutting into batches changes an answer (rows RA2 to RA5).
"""

from itertools import accumulate, pairwise
from typing import Any
from uuid import UUID

import pytest

from records.topic_patterns import digest
from state.kafka.requests import AnyRequest, ConsumerGroupHeartbeat, RegexResolution, RegexResolved
from state.kafka.topic_images import TopicImage
from tests.harness.common import Common
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, Record

SEEN, HIDDEN, LATER = (TopicImage(UUID(int=number), 1) for number in (1, 2, 3))
PATTERN = ".*"
# Each name is in no other text of the records.
ALL = {"hidden": HIDDEN, "later": LATER, "seen": SEEN}


def common(number: int) -> Common:
    return {
        "group_id": "g",
        "correlation_id": str(number),
        "reply_partition": 0,
        "api_version": 1,
        "client_id": "c",
    }


def look(*names: str) -> RegexResolution:
    return RegexResolution({name: ALL[name] for name in names}, T0, seen=digest(sorted(ALL)))


def log_of_a_member() -> list[Record]:
    """It joins, topics come, the watcher tells, an answer asks for a look, and a heartbeat brings it."""
    beat: dict[str, Any] = {"member_id": "m", "member_epoch": 2, "checks_topics": True}
    joined = RegexResolution({"seen": SEEN}, T0, seen=digest(["seen"]))
    log = Log()
    requests: list[AnyRequest] = [
        ConsumerGroupHeartbeat(
            **common(0),
            **beat | {"member_epoch": 0},
            rebalance_timeout_ms=60_000,
            subscribed_topic_regex=PATTERN,
            topic_partitions=[],
            regex=joined,
        ),
        RegexResolved(group_id="g", patterns={PATTERN: look(*ALL)}),
        ConsumerGroupHeartbeat(**common(1), **beat),
        ConsumerGroupHeartbeat(**common(2), **beat),
        ConsumerGroupHeartbeat(**common(3), **beat, looked={PATTERN: look("later", "seen")}),
    ]
    return [log.request(T0 + 7_000 * number, request) for number, request in enumerate(requests)]


def outcome(cuts: tuple[int, ...]) -> dict[str, list[dict[str, Any]]]:
    """What the batches of these sizes write: by topic, and of the groups topic only the last view."""
    records, state, frames = log_of_a_member(), None, []
    for begin, end in pairwise((0, *accumulate(cuts))):
        held = spark_state(state, watermark_ms=0)
        frames += call(records[begin:end], held)
        state = tuple(held.get)
    topics = LAYOUT.responses_topic, LAYOUT.events_topic, LAYOUT.groups_topic
    written = {topic: contents(frames, topic) for topic in topics}
    return written | {LAYOUT.groups_topic: written[LAYOUT.groups_topic][-1:]}


def test_what_a_group_asks_for_outlives_the_batch() -> None:
    written = outcome((1, 1, 1, 1, 1))
    answers = {answer["correlation_id"]: answer for answer in written[LAYOUT.responses_topic]}
    assert [answers[n].get("look") for n in "0123"] == [None, PATTERN, None, None]
    has = [topic["topic_id"] for topic in answers["3"]["assignment"]]
    assert has == [str(SEEN.id), str(LATER.id)]
    (view,) = written[LAYOUT.groups_topic]
    assert view["consumer"]["resolved_regexes"] == {PATTERN: ["later", "seen"]}
    assert view["consumer"]["checked_regexes"] == {PATTERN: digest(sorted(ALL))}
    assert "hidden" not in str(written)
    assert str(HIDDEN.id) not in str(written)


@pytest.mark.parametrize("cuts", [(5,), (1, 4), (2, 3), (3, 2), (4, 1), (1, 2, 2)])
def test_no_cutting_changes_the_outcome(cuts: tuple[int, ...]) -> None:
    assert outcome(cuts) == outcome((1, 1, 1, 1, 1))
