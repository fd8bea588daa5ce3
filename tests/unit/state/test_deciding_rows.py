"""`rule` of an answer or a history entry is the row that decided it, not the last row that was applied."""

import re

import pytest

from tests.harness.scenario_player import ScenarioPlayer

STABLE = """
config group.initial.rebalance.delay.ms=0
join m1 api=3
join m2 instance=i2
join m1 id=@m1
sync m1 assign=@m1:a,@m2:b
sync m2
"""


def rules(told: list[str]) -> dict[str, str]:
    """Return the row in brackets of each line, by the line's request or entry type."""
    found = [re.match(r"  (?:->|\*) (\S+).* \((\w*)\)$", line) for line in told]
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("join m3 api=3", {"MemberAdded": "N6", "PreparingRebalance": "N6"}),
        ("join m3 instance=i3", {"MemberAdded": "N4", "PreparingRebalance": "N4"}),
        ("join m1 id=@m1", {"MemberRejoined": "E9", "PreparingRebalance": "E9"}),
        ("join m2 id=@m2 protocols=range:new", {"MemberRejoined": "E10", "PreparingRebalance": "E10"}),
        ("join m2 id= instance=i2", {"m2.join2": "W2", "MemberReplaced": "W1"}),
        ("leave m1", {"m1.leave": "L6", "MemberRemoved": "L6", "PreparingRebalance": "L7"}),
        ("leave m1 members=/i2", {"m1.leave": "L2", "MemberRemoved": "L2", "PreparingRebalance": "L7"}),
        ("leave m1 members=nobody", {"m1.leave": "L5"}),
        ("leave m1 members=@m1,nobody,/nobody", {"m1.leave": "L5", "MemberRemoved": "L6"}),
        ("leave m1 members=", {"m1.leave": ""}),
        ("commit m1 offsets=t-0=5:x*5000", {"m1.commit": "O8"}),
        ("commit m1 offsets=t-0=5:x*5000,t-1=6", {"m1.commit": "O8"}),
        ("fetch m1 group=none partitions=t-0", {"m1.fetch": "Q1"}),
        ("at 10s", {"MemberRemoved": "T5", "PreparingRebalance": "T5"}),
    ],
)
def test_the_row_that_decided_is_named(command: str, expected: dict[str, str]) -> None:
    world = ScenarioPlayer()
    for line in STABLE.split("\n"):
        if line:
            world.run(line)
    told = rules(world.run(command))
    assert expected.items() <= told.items()


def test_a_new_member_with_the_id_it_was_given_opens_a_round_by_row_e4() -> None:
    world = ScenarioPlayer()
    assert rules(world.run("join m1"))["MemberIdAssigned"] == "N5"
    assert rules(world.run("join m1 id=@m1"))["PreparingRebalance"] == "E4"


def test_a_round_that_completes_at_once_still_names_what_led_to_it() -> None:
    world = ScenarioPlayer()
    for line in STABLE.split("\n"):
        if line:
            world.run(line)
    world.run("leave m2")
    world.run("join m1 id=@m1")
    told = rules(world.run("sync m1 assign=@m1:a"))
    assert told == {"m1.sync2": "S8", "Stable": "S8"}
    told = rules(world.run("join m1 id=@m1"))
    assert (told["PreparingRebalance"], told["CompletingRebalance"], told["m1.join4"]) == ("E9", "C5", "C5")
