"""The conformance scripts are whole, and what compares their answers sees every difference."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import JoinGroupResponse

from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from tests.conformance.compare import differences, unkept, unused
from tests.conformance.kept import NOT_REACHED
from tests.conformance.normalise import Answer, normalised
from tests.conformance.random_consumers import random_consumers
from tests.conformance.random_scripts import random_case
from tests.conformance.requests import NEWEST, body
from tests.conformance.script import Case, Mode, Step, load, parse
from tests.conformance.servers import SETTINGS, Played, promised
from tests.conformance.told import Told

DOCS = Path(__file__).parents[3] / "docs"
RULES = "".join((DOCS / name).read_text() for name in ("rules.md", "rules-consumer.md"))
ROWS = dict(re.findall(r"^\| ([A-Z]+\d+[a-z]?) \| .* \| (.*) \|$", RULES, re.MULTILINE))
PREFIX = "run-1-"


def told() -> Told:
    return Told(PREFIX, {})


def test_every_row_a_client_can_reach_has_a_script() -> None:
    named = {row for case in load() for row in case.rows}
    assert named <= ROWS.keys()
    can_occur = {row for row, scenario in ROWS.items() if not scenario.startswith("cannot occur")}
    assert can_occur - named == NOT_REACHED.keys()


def test_every_step_is_a_request_that_can_be_sent() -> None:
    cases = [*load(), *map(random_case, range(20)), *map(random_consumers, range(20))]
    assert len(cases) >= 300
    for case in cases:
        assert case.servers in SETTINGS
        for step in case.steps:
            if step.is_request:
                newest = NEWEST[step.api][1]
                assert body(step, newest if step.version is None else step.version, told())


def test_a_case_is_one_for_each_version() -> None:
    text = '== one\nrows: J5 N6\nfor: 2-4\nA join.{v} reason="a b" &\nA answer\n== two\nslow: yes\nB list\n'
    first, *_, last, other = parse(text)
    assert (first.title, first.quick, last.title, last.quick) == ("one [v2]", False, "one [v4]", True)
    assert first.steps[0] == Step("A", "join", 2, {"reason": "a b"}, Mode.TAKEN_UP, 'A join.2 reason="a b" &')
    assert (other.title, other.slow, other.quick) == ("two", True, False)


def test_member_ids_have_names() -> None:
    member_id = "client-A-01234567-89ab-cdef-0123-456789abcdef"
    stranger = "client-B-11234567-89ab-cdef-0123-456789abcdef"
    member = JoinGroupResponse.JoinGroupResponseMember
    answer = JoinGroupResponse(
        version=9, member_id=member_id, members=[member(member_id=stranger), member(member_id=member_id)]
    )
    known = told()
    known.learn("A", answer)
    flat = normalised(answer, known)
    assert flat["member_id"] == "'@A1'"
    assert flat["member_id's form"] == "client-A-<uuid>"
    assert [flat[f"members.{i}.member_id"] for i in range(2)] == ["'@A1'", "'client-B-<uuid>'"]


def played(case: Case, kafkas: Answer, ours: Answer) -> Played:
    return Played(case, [kafkas], [ours], frozenset())


def test_what_differs_is_told() -> None:
    (case,) = parse("== one\nA heartbeat\n")
    same = played(case, {"error_code": "NONE"}, {"error_code": "NONE"})
    other = played(case, {"error_code": "NONE"}, {"error_code": "ILLEGAL_GENERATION", "more": "1"})
    assert not differences(same)
    assert [found.path for found in unkept([same, other])] == ["error_code", "more"]
    assert unused([same, other])
    assert all(kept.is_always_shown for kept in unused([same, other]))


def heartbeat_answer(*partitions: int) -> Any:
    """An answer to A in epoch 3, with an assignment of these partitions."""
    topics = [{"topic_id": UUID(int=1), "partitions": list(partitions)}]
    fields = {"member_id": "member-A", "member_epoch": 3, "assignment": {"topic_partitions": topics}}
    answer = codec.encode_response(RequestHeader(68, 1, 1, "A", 0), fields)
    return codec.decode_response(68, 1, answer)


def test_which_partitions_a_member_has_is_not_compared_but_how_many() -> None:
    known = Told(PREFIX, {"trips": UUID(int=1)})
    two, others, three = (normalised(heartbeat_answer(*some), known) for some in ((0, 1), (4, 5), (0, 1, 2)))
    assert two == others != three
    assert two["assignment.topic_partitions.id of trips"] == "2 partitions of None"


def test_a_script_names_partitions_by_what_the_member_was_assigned() -> None:
    known = Told(PREFIX, {"trips": UUID(int=1)})
    known.learn_beat("A", heartbeat_answer(2, 3, 4))
    known.learn_beat("A", heartbeat_answer(3, 5))
    holding = known.holding("A")
    indexes = [holding.index("trips", name) for name in ("mine", "mine2", "kept", "gained", "lost", "other")]
    assert indexes == [3, 5, 3, 5, 2, 0]
    assert holding.owned("some") == (("trips", 5),)
    assert known.generations == {"A": 3}


def test_what_kafka_answers_differently_in_another_play_is_not_compared() -> None:
    kafkas = [[{"epoch": "3", "partitions": "4"}], [{"epoch": "3", "partitions": "6"}]]
    ours = [{"epoch": "2", "partitions": "5", "more": "1"}]
    assert promised(kafkas, ours) == ([{"epoch": "3"}], [{"epoch": "2", "more": "1"}])
    assert promised(kafkas[:1], ours) == (kafkas[0], ours)
    without, with_one = {"assignment": "None"}, {"assignment.length": "1"}
    assert promised([[without], [with_one]], [with_one]) == ([{}], [{}]), "a value null and no value are two"
