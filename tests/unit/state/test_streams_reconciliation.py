"""Warm-up tasks, to which no assignor of Kafka 4.4 leads, and the limits of a streams group."""

from typing import Any

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.history import TASK_STATES_MAX, EntryType
from kafka_why.contract.kafka.requests import DescribeGroupConfigs
from kafka_why.contract.kafka.responses import DescribeGroupConfigsResponse
from kafka_why.contract.kafka.streams_responses import (
    KeyValue,
    StreamsEndpoint,
    StreamsGroupHeartbeat,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
)
from records.truncation import encode_view
from state.config import CoordinatorConfig
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.protocols import step, view_of
from state.kafka.streams.endpoints import BYTES_MAX, endpoints_for
from state.kafka.streams.reconciliation import reconcile
from state.kafka.streams.requests import CONFIGS_MAX, ENTRIES_MAX, SUBTOPOLOGIES_MAX, SUBTOPOLOGY_ID_MAX
from state.kafka.streams.update import OFFSETS_MAX
from state.kafka.streams_group import RoleTasks, StreamsGroup, StreamsGroupMember
from state.kafka.streams_topics import configure
from state.protocol import Received
from tests.harness import streams_story
from tests.harness.histories import Recorder
from tests.harness.member_log import LogClient
from tests.harness.streams_requests import topology_of
from tests.unit.state.test_cost import instructions


def tasks(roles: str) -> RoleTasks:
    """Return the task 0_0 in these roles: `AW` is active and warm-up, `-` none."""
    return RoleTasks(*([("0", 0)] if role in roles else [] for role in "ASW"))


def check(has: str, target: str, other: str, *steps: str) -> list[str]:
    """Reconcile member `a` of process `p`, which has task 0_0 in the roles `has`, from epoch 2 to its target
    of epoch 3. `other` is the process of another member and its roles, or "". Each of `steps` is the roles
    that the member reports, `?` if it reports none, and what is expected then. Return the rows that applied.
    """
    group = StreamsGroup("g", "requests-0-0", group_epoch=3, assignment_epoch=3, target={"a": tasks(target)})
    for member_id, process, roles, epoch in (("a", "p", has, 2), ("b", other[:1], other[1:], 3)):
        member = StreamsGroupMember(member_id, process_id=process, member_epoch=epoch, rebalance_timeout_ms=1)
        group.add(member)
        group.assign(member, tasks(roles), RoleTasks([], [], []), dict.fromkeys(tasks(roles).active, 2))
    member, rows = group.members["a"], []
    for one in steps:
        owned, _, expected = one.partition(" => ")
        context = StepContext(group, "g", "requests-0-1", 0, CoordinatorConfig())
        reconcile(context, group, member, None if owned == "?" else tasks(owned))
        streams_story.check(expected, streams_story.of_member(group, member))
        rows += context.rules
    return rows


def test_warm_up_task_changes_its_role_in_one_heartbeat() -> None:
    assert "KSR12" in check("S", "W", "", "? => e3 STABLE S[] W[0]")
    assert "KSR12" in check("W", "S", "", "? => e3 STABLE S[0] W[]")
    assert "KSR13" in check("W", "A", "", "? => e3 STABLE A[0] W[]")
    assert "KSR13" in check("W", "A", "qA", "? => e3 UNRELEASED A[] W[0]")  # it stays open meanwhile
    # An active task is closed before it is a warm-up (row KSR14).
    check("A", "W", "", "? => e2 UNREVOKED A[] pendA[0]", "- => e3 STABLE W[0] pendA[]")
    check("A", "W", "", "- => e3 UNRELEASED A[] W[]", "? => e3 STABLE W[0]")


@pytest.mark.parametrize("held", list("ASW"))
@pytest.mark.parametrize("wanted", list("ASW"))
def test_task_held_in_the_same_process_blocks_every_role(held: str, wanted: str) -> None:
    """Rows KSR6 to KSR8. Those of another process block only if both roles are active."""
    check("-", wanted, f"p{held}", f"? => e3 UNRELEASED {wanted}[]")
    of_others = f"UNRELEASED {wanted}[]" if held == wanted == "A" else f"STABLE {wanted}[0]"
    check("-", wanted, f"q{held}", f"? => e3 {of_others}")


NO_DELAYS = "config group.streams.initial.rebalance.delay.ms=0 group.streams.assignment.interval.ms=0"


def group_after(player: Recorder, *commands: str) -> StreamsGroup:
    player.play(NO_DELAYS, *commands)
    group = player.any_group()
    assert isinstance(group, StreamsGroup)
    return group


def beat(**fields: Any) -> StreamsGroupHeartbeat:
    """Return the request of a member that joins, with these fields."""
    joins: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    joins |= {"member_id": "0", "member_epoch": 0, "process_id": "p", "rebalance_timeout_ms": 1}
    return StreamsGroupHeartbeat(**LogClient(0, "g").common(), **joins | fields)


def configured(number: int, value: str) -> StreamsTopology:
    changelog = StreamsTopicInfo(name="s", topic_configs=[KeyValue("k", value)] * number)
    return StreamsTopology(0, [Subtopology(subtopology_id="0", state_changelog_topics=[changelog])])


@pytest.mark.parametrize(
    "topology",
    [
        topology_of(f"{'a' * (SUBTOPOLOGY_ID_MAX + 1)}: foo"),
        topology_of(f"0: {' '.join(f't{n}' for n in range(ENTRIES_MAX + 1))}"),
        topology_of(f"0: {'foo >r ' * (ENTRIES_MAX // 2)} {{0}}"),
        topology_of(";".join(f"{n}: foo" for n in range(SUBTOPOLOGIES_MAX + 1))),
        configured(CONFIGS_MAX + 1, "v"),
        configured(20, "v" * 30_000),
    ],
    ids=["id", "sources", "all lists", "subtopologies", "configs", "bytes of configs"],
)
def test_streams_topology_above_a_limit_is_refused(topology: StreamsTopology) -> None:
    effects = step(None, "g", Received("t-0-0", beat(topology=topology)), 0, CoordinatorConfig())
    assert (effects.rules, effects.group) == (["KSQ14"], None)


def test_view_of_a_group_with_long_ids_is_shortened() -> None:
    topology = topology_of(";".join(f"{n:032700}: t{n} +c{n}" for n in range(40)))
    group = StreamsGroup("g", "t-requests-0-0", topology=topology)
    assert len(encode_view(view_of(group), 100_000)) < 100_000


def test_topology_is_configured_again_only_if_its_topics_have_changed() -> None:
    player = Recorder()
    before = group_after(player, "topics foo=2", "stream A e0", "stream B e0 process=p").configured
    assert group_after(player, "stream B e0 process=p").configured is before


@pytest.mark.parametrize("fixed", ["", ":1"], ids=["open", "fixed"])
def test_work_of_configuring_a_topology_is_linear_in_its_topics(fixed: str) -> None:
    def work(lists: int) -> int:
        topology = topology_of("0: " + " ".join(f"t{n} <r{n}{fixed} >r{n} {{r{n}}}" for n in range(lists)))
        known = {f"t{n}": Topic(b"t", 1) for n in range(lists)}
        return instructions(lambda: configure(topology, known))

    assert work(400) < 5 * work(100)


def test_task_offsets_beyond_the_limit_are_not_stored() -> None:
    player = Recorder()
    group = group_after(player, "topics foo=4", "stream A e0", "stream B e0 process=p")
    group.members["A"].task_offsets = {("0", n): n for n in range(OFFSETS_MAX - 1)}
    other = group_after(player, "stream B e3 offsets[1:5,2:6] ends[3:7]").members["B"]
    assert (other.task_offsets, other.task_end_offsets) == ({("0", 1): 5}, {})


def test_states_of_tasks_beyond_the_limit_are_left_out() -> None:
    commands = "topics foo=1001 s=1001", 'topology "0: foo +s"', "stream A e0 process=p"
    entries = Recorder().play(NO_DELAYS, *commands)
    (target,) = (entry for entry in entries if entry.type is EntryType.TARGET_ASSIGNMENT_COMPUTED)
    assert len(target.task_states or ()) == TASK_STATES_MAX == 1_000


def test_endpoints_with_too_many_bytes_are_left_out() -> None:
    host = "h" * 32_000
    most = BYTES_MAX // (len(host) + 120)
    endpoint = StreamsEndpoint(host, 1)
    members = {f"{n}": StreamsGroupMember(f"{n}", user_endpoint=endpoint) for n in range(most)}
    group = StreamsGroup("g", "t-requests-0-0", members=members, endpoint_epoch=3)
    request = beat(endpoint_information_epoch=2)
    context = StepContext(group, "g", "t-requests-0-1", 0, CoordinatorConfig())
    epoch, endpoints = endpoints_for(context, group, members["0"], request)
    assert (epoch, len(endpoints or [])) == (3, most)
    assert len(encode(endpoints)) <= BYTES_MAX
    group.add(StreamsGroupMember("more", user_endpoint=endpoint))
    assert endpoints_for(context, group, members["0"], request) == (2, None)


def test_rack_aware_tags_of_a_group_default_to_the_coordinators() -> None:
    config = CoordinatorConfig(group_streams_rack_aware_assignment_tags="zone")
    request = DescribeGroupConfigs(**LogClient(0, "g").common())
    (reply,) = step(None, "g", Received("t-0-0", request), 0, config).replies
    assert isinstance(reply.response, DescribeGroupConfigsResponse)
    assert ("streams.rack.aware.assignment.tags", "zone") in [
        (c.name, c.value) for c in reply.response.configs
    ]
