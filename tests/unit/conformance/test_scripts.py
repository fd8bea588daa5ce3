"""The conformance scripts are whole, and what compares their answers sees every difference."""

from typing import Any
from uuid import UUID

from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from tests.conformance.compare import differences, unkept, unused
from tests.conformance.kept import KEPT, KEPT_OF, NOT_REACHED
from tests.conformance.normalise import Answer, normalised
from tests.conformance.random_consumers import random_consumers
from tests.conformance.random_scripts import random_case
from tests.conformance.random_shares import random_shares
from tests.conformance.random_streams import random_streams
from tests.conformance.requests import NEWEST, body
from tests.conformance.script import Case, load, parse
from tests.conformance.servers import SETTINGS, Played, promised
from tests.conformance.told import Told
from tests.harness.scenario import rules_of

PREFIX = "run-1-"


def told() -> Told:
    return Told(PREFIX, {})


def test_every_rule_row_a_client_can_reach_has_a_script() -> None:
    named = {row for case in load() for row in case.rows}
    documented = set(rules_of("rules", "rules-consumer", "rules-share", "rules-streams"))
    assert named - documented == {"SH2", "SH4"}, "rows of the gateway"
    assert documented - named == NOT_REACHED.keys()


def test_every_step_is_a_request_that_can_be_sent() -> None:
    cases = [*load(), *map(random_case, range(20)), *map(random_consumers, range(20))]
    cases += [*map(random_shares, range(20)), *map(random_streams, range(20))]
    assert len(cases) >= 300
    for case in cases:
        assert case.servers in SETTINGS
        for step in case.steps:
            if step.is_request:
                newest = NEWEST[step.api][1]
                assert body(step, newest if step.version is None else step.version, told())


def played(case: Case, kafkas: Answer, ours: Answer) -> Played:
    return Played(case, [kafkas], [ours], frozenset())


def test_conformance_differences_are_reported() -> None:
    (case,) = parse("== one\nA heartbeat\n")
    same = played(case, {"error_code": "NONE"}, {"error_code": "NONE"})
    other = played(case, {"error_code": "NONE"}, {"error_code": "ILLEGAL_GENERATION", "more": "1"})
    assert not differences(same)
    assert [found.path for found in unkept([same, other], KEPT)] == ["error_code", "more"]
    assert unused([same, other], KEPT)
    assert all(kept.is_always_shown for kept in unused([same, other], KEPT))


def heartbeat_answer(*partitions: int) -> Any:
    """Return an answer to A in epoch 3, with an assignment of these partitions."""
    topics = [{"topic_id": UUID(int=1), "partitions": list(partitions)}]
    fields = {"member_id": "member-A", "member_epoch": 3, "assignment": {"topic_partitions": topics}}
    answer = codec.encode_response(RequestHeader(68, 1, 1, "A", 0), fields)
    return codec.decode_response(68, 1, answer)


def test_conformance_compares_only_the_number_of_a_members_partitions() -> None:
    known = Told(PREFIX, {"trips": UUID(int=1)})
    two, others, three = (normalised(heartbeat_answer(*some), known) for some in ((0, 1), (4, 5), (0, 1, 2)))
    assert two == others != three
    assert two["assignment.topic_partitions.id of trips"] == "2 partitions of None"


def test_answers_that_kafka_varies_between_plays_are_not_compared() -> None:
    kafkas = [[{"epoch": "3", "partitions": "4"}], [{"epoch": "3", "partitions": "6"}]]
    ours = [{"epoch": "2", "partitions": "5", "more": "1"}]
    assert promised(kafkas, ours) == ([{"epoch": "3"}], [{"epoch": "2", "more": "1"}])
    assert promised(kafkas[:1], ours) == (kafkas[0], ours)
    without, with_one = {"assignment": "None"}, {"assignment.length": "1"}
    assert promised([[without], [with_one]], [with_one]) == ([{}], [{}]), "a value null and no value are two"


def share_member(name: str, epoch: int, *partitions: int) -> dict[str, Any]:
    """Return a member of a share group with partitions of trips."""
    topics = [{"topic_id": UUID(int=1), "topic_name": "trips", "partitions": list(partitions)}]
    return {
        "member_id": name,
        "member_epoch": epoch,
        "subscribed_topic_names": ["trips"],
        "assignment": {"topic_partitions": topics},
    }


def described(*members: dict[str, Any], loose: bool = True) -> Answer:
    """Return the answer to ShareGroupDescribe of a group whose target is of epoch 3."""
    groups = [{"group_id": f"{PREFIX}g", "assignment_epoch": 3, "members": list(members)}]
    answer = codec.encode_response(RequestHeader(77, 1, 1, "A", 0), {"groups": groups})
    return normalised(codec.decode_response(77, 1, answer), Told(PREFIX, {"trips": UUID(int=1)}, loose=loose))


def test_share_assignment_is_compared_by_spread_and_not_by_member() -> None:
    one = described(share_member("a", 3, 0, 1), share_member("b", 3, 2))
    other = described(share_member("a", 3, 2), share_member("b", 3, 0, 1))
    assert one == other
    assert one["groups.0: id of trips is dealt"] == "3 partitions, each to 1 to 1"
    assert one["groups.0: partitions of a member"] == "1 to 2"
    assert one != described(share_member("a", 3, 0, 1), share_member("b", 3, 1, 2))
    assert one != described(share_member("a", 3, 0, 1, 2), share_member("b", 3))
    of_sizes = [described(share_member("a", 3, *some), loose=False) for some in ((0, 1), (1, 2), (0,))]
    assert of_sizes[0] == of_sizes[1] != of_sizes[2]


def test_random_share_scripts_are_repeatable_and_wait_for_initialization() -> None:
    """A member joins, and what nobody had is waited for before anything else is sent."""
    texts = [[step.text for step in random_shares(seed).steps] for seed in range(40)]
    assert texts == [[step.text for step in random_shares(seed).steps] for seed in range(40)]
    for first, second in (lines[:2] for lines in texts):
        names = first.partition("names=")[2].split(",")
        assert second.startswith("A offsets until=") is bool({"orders", "payments", "trips"} & {*names})
    sent = {word for lines in texts for line in lines for word in line.split()[1:2]}
    wanted = {"share", "sharers", "offsets", "reset", "clear", "make", "grow", "drop", "delete"}
    assert wanted <= {word.partition(".")[0] for word in sent}


def test_bug_fixed_in_a_newer_kafka_is_an_expected_difference() -> None:
    (case,) = parse("== one\nA offsets\n")
    path = "groups.0.topics.0.partitions.2.start_offset"
    newer, older = {path: "0"}, {path: "-1"}
    assert unkept([played(case, older, newer)], KEPT)
    assert not unkept([played(case, older, newer)], KEPT_OF["4.3"])
    assert unkept([played(case, newer, older)], KEPT_OF["4.3"])
