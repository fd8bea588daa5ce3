"""The limits of streams groups (row KSQ14): large requests and groups have bounded records and answers."""

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import DescribeGroupConfigs
from kafka_why.contract.kafka.responses import DescribeGroupConfigsResponse
from kafka_why.contract.kafka.streams_responses import (
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
from state.kafka.streams.requests import ENTRIES_MAX, SUBTOPOLOGY_ID_MAX
from state.kafka.streams.update import OFFSETS_MAX
from state.kafka.streams_group import StreamsGroup, StreamsGroupMember
from state.kafka.streams_topics import configure
from state.protocol import Received
from tests.harness.scenario_player import ScenarioPlayer
from tests.harness.streams_requests import topology_of
from tests.unit.state.test_cost import instructions

NO_DELAYS = "config group.streams.initial.rebalance.delay.ms=0 group.streams.assignment.interval.ms=0"


def played(*commands: str) -> ScenarioPlayer:
    player = ScenarioPlayer()
    for command in (NO_DELAYS, *commands):
        player.run(command)
    return player


def group_of(player: ScenarioPlayer) -> StreamsGroup:
    group = player.any_group()
    assert isinstance(group, StreamsGroup)
    return group


@pytest.mark.parametrize(
    "topology",
    [
        f"{'a' * (SUBTOPOLOGY_ID_MAX + 1)}: foo",
        f"0: {' '.join(f't{n}' for n in range(ENTRIES_MAX + 1))}",
        f"0: {'foo ' * (ENTRIES_MAX // 2)} {'>r ' * (ENTRIES_MAX // 2)} {{0}}",
    ],
    ids=["id", "sources", "all lists"],
)
def test_topology_above_a_limit_is_refused(topology: str) -> None:
    player = played("topics foo=1", f'topology "{topology}"', "stream A e0 => INVALID_REQUEST")
    assert "KSQ14" in player.rules
    assert player.any_group() is None


def test_view_of_a_group_with_long_ids_is_shortened() -> None:
    subtopologies = [
        Subtopology(
            subtopology_id=f"{n:032700}",
            source_topics=[f"t{n}"],
            state_changelog_topics=[StreamsTopicInfo(name=f"c{n}")],
        )
        for n in range(40)
    ]
    group = StreamsGroup("g", "t-requests-0-0", topology=StreamsTopology(0, subtopologies))
    assert len(encode_view(view_of(group), 100_000)) < 100_000


def test_topology_is_configured_again_only_if_its_topics_have_changed() -> None:
    player = played("topics foo=2", "stream A e0 => e2 A[0,1]", "stream B e0 process=p => e3 A[]")
    group = group_of(player)
    before = group.configured
    player.run("stream B e0 process=p => e3 A[]")
    assert group_of(player).configured is before


def work_of_configuring(lists: int, fixed: str) -> int:
    """Return the work for a subtopology with lists of this length, and a copartition group for each topic.
    `fixed` follows the names of the repartition topics.
    """
    names = [f"t{n}" for n in range(lists)]
    read = " ".join([*names, *(f"<r{n}{fixed}" for n in range(lists)), *(f">r{n}" for n in range(lists))])
    groups = " ".join(f"{{r{n}}}" for n in range(lists))
    topology = topology_of(f"0: {read} {groups}")
    known = {name: Topic(name.encode(), 1) for name in names}
    return instructions(lambda: configure(topology, known))


@pytest.mark.parametrize("fixed", ["", ":1"], ids=["open", "fixed"])
def test_work_of_configuring_is_linear_in_the_lists(fixed: str) -> None:
    assert work_of_configuring(400, fixed) < 5 * work_of_configuring(100, fixed)


def test_offsets_beyond_the_limit_are_not_stored() -> None:
    player = played("topics foo=4", "stream A e0 => e2 A[0-3]", "stream B e0 process=p => e3 A[]")
    group_of(player).members["A"].task_offsets = {("0", n): n for n in range(OFFSETS_MAX - 1)}
    player.run("stream B e3 offsets[1:5,2:6] ends[3:7]")
    other = group_of(player).members["B"]
    assert (other.task_offsets, other.task_end_offsets) == ({("0", 1): 5}, {})


def test_endpoints_with_too_many_bytes_are_left_out() -> None:
    host = "h" * 32_000
    most = BYTES_MAX // (len(host) + 120)
    endpoint = StreamsEndpoint(host, 1)
    members = {f"{n}": StreamsGroupMember(f"{n}", user_endpoint=endpoint) for n in range(most)}
    group = StreamsGroup("g", "t-requests-0-0", members=members, endpoint_epoch=3)
    request = StreamsGroupHeartbeat(
        group_id="g",
        correlation_id="c",
        reply_partition=0,
        api_version=1,
        client_id="c",
        member_id="0",
        member_epoch=1,
        endpoint_information_epoch=2,
    )
    context = StepContext(group, "g", "t-requests-0-1", 0, CoordinatorConfig())
    epoch, endpoints = endpoints_for(context, group, members["0"], request)
    assert epoch == 3
    assert endpoints is not None
    assert len(endpoints) == most
    assert len(encode(endpoints)) <= BYTES_MAX
    group.add(StreamsGroupMember("more", user_endpoint=endpoint))
    assert endpoints_for(context, group, members["0"], request) == (2, None)


def test_default_of_a_groups_tags_is_that_of_the_coordinator() -> None:
    config = CoordinatorConfig(group_streams_rack_aware_assignment_tags="zone")
    request = DescribeGroupConfigs(group_id="g", correlation_id="c", reply_partition=0, api_version=4)
    (reply,) = step(None, "g", Received("t-0-0", request), 0, config).replies
    assert isinstance(reply.response, DescribeGroupConfigsResponse)
    values = {one.name: one.value for one in reply.response.configs}
    assert values["streams.rack.aware.assignment.tags"] == "zone"
