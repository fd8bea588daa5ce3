"""Kafka's own command-line tools through the gateway, with a real broker and the coordinator behind it.

Kafka 4's tools ask for groups of KIP-848 first, and for classic ones when the group is none of these.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from itertools import chain

import pytest

from clients.coordinator_client import CoordinatorClient
from gateway.net.server import GatewayOptions
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from operations.admin.requests import GroupRequests
from tests.e2e.gateway_clients import (
    PARTITIONS,
    RECORDS,
    ConfluentMember,
    Member,
    PythonMember,
    assert_coordinated,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import history_of, wait_until
from tests.harness.java_tools import ConsoleConsumer, JavaTools
from tests.harness.kafkas_shares import JavaShares

pytestmark = pytest.mark.e2e

EACH = RECORDS // PARTITIONS
JAVA_SESSION_MS = 6_000

AnyMember = Member | ConsoleConsumer


@dataclass(frozen=True)
class ToolsGroup:
    """A group and its topic, as Kafka's tools show them, and as the coordinator itself describes them."""

    group_id: str
    topic: str
    tools: JavaTools
    jvm: JavaShares
    coordinator: GroupRequests

    def tool(self, *arguments: str) -> str:
        """Return the output of `kafka-consumer-groups` about this group."""
        return self.jvm.groups(*arguments, "--group", self.group_id)

    def console_consumer(self, **settings: str) -> AbstractContextManager[ConsoleConsumer]:
        return self.tools.console_consumer(self.group_id, self.topic, **settings)

    def described(self) -> GroupSnapshot:
        found = self.coordinator.describe({self.group_id: None})[0][self.group_id]
        assert isinstance(found, GroupSnapshot)
        return found

    def offsets(self) -> dict[int, int]:
        """Return the committed offsets by partition."""
        _, fetched = self.coordinator.describe({self.group_id: None}, with_offsets=True)
        return {partition.partition: it.offset for partition, it in fetched[self.group_id].committed.items()}

    def members(self) -> list[list[str]]:
        """Return each member as `kafka-consumer-groups` shows it, with epochs and assignments."""
        printed = self.tool("--describe", "--members", "--verbose")
        return rows(printed) if "CONSUMER-ID" in printed else []

    def is_shared(self, members: int) -> bool:
        """Return True if so many members have as many partitions each, by the same tool."""
        return [cells[4] for cells in self.members()] == [str(PARTITIONS // members)] * members

    def wait_until(self, state: str, members: int) -> None:
        """Wait until the coordinator shows this state."""

        def is_so() -> bool:
            described = self.described()
            return described.state == state and len(described.members) == members

        wait_until(is_so, f"the group is {state} with {members} members")


@pytest.fixture(scope="module")
def tools(gateway: str, tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    return JavaTools(gateway, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="module")
def jvm(gateway: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaShares]:
    """Yield one JVM for the tools that end by themselves: a JVM for each would take most of the time."""
    with JavaShares(gateway, tmp_path_factory.mktemp("jvm")) as jvm:
        yield jvm


@pytest.fixture(scope="module")
def coordinator(options: GatewayOptions) -> Iterator[GroupRequests]:
    """Yield a client of the coordinator that does not use the gateway."""
    with CoordinatorClient(options.client_config, options.layout, client_id="test") as client:
        yield GroupRequests(client)


@pytest.fixture
def group(
    gateway: str, topic: str, tools: JavaTools, jvm: JavaShares, coordinator: GroupRequests
) -> ToolsGroup:
    """Return a group that does not exist yet, with a topic that has records."""
    produce(gateway, topic, range(RECORDS))
    return ToolsGroup(new_group(), topic, tools, jvm, coordinator)


@pytest.fixture
def member(gateway: str, group: ToolsGroup) -> Iterator[PythonMember]:
    """Yield the only member of the group, which has read and committed all records."""
    with closing(PythonMember(gateway, group.group_id, group.topic)) as member:
        assert poll_all(range(RECORDS), member) == [[*range(RECORDS)]]
        member.commit()
        yield member


def rows(printed: str) -> list[list[str]]:
    """Return the cells of a table's rows, none of which may contain blanks."""
    lines = [line.split() for line in printed.splitlines() if line]
    (head,) = [number for number, cells in enumerate(lines) if cells[0] in ("GROUP", "TOPIC")]
    return lines[head + 1 :]


def test_groups_tool_describes_offsets_and_members(
    options: GatewayOptions, gateway: str, group: ToolsGroup, member: PythonMember
) -> None:
    group_id, topic = group.group_id, group.topic
    (me,) = group.described().members
    who = [me.member_id, me.client_host, me.client_id]
    assert [group_id, "Stable"] in rows(group.jvm.groups("--list", "--state"))
    produce(gateway, topic, range(PARTITIONS))
    assert rows(group.tool("--describe", "--offsets")) == [
        [group_id, topic, str(p), str(offset), str(EACH + 1), "1", *who]
        for p, offset in sorted(group.offsets().items())
    ]
    assert rows(group.tool("--describe", "--members", "--verbose")) == [
        [group_id, *who, str(PARTITIONS), "-", f"{topic}:0,1,2,3", "-", "-"]
    ]
    ((name, address, node, *state),) = rows(group.tool("--describe", "--state"))
    assert (name, node, state) == (group_id, "(1)", ["range", "Stable", "1"])
    host, _, port = address.rpartition(":")
    assert (host, int(port)) in member.brokers()
    assert address != str(options.client_config)
    assert_coordinated(options, group_id, joins=1)


def test_groups_tool_changes_an_empty_group(
    options: GatewayOptions, group: ToolsGroup, member: PythonMember
) -> None:
    assert_at_work_it_is_refused(group)
    member.close()
    group.wait_until("Empty", members=0)
    assert_offsets_are_reset(group)
    assert rows(group.tool("--delete-offsets", "--topic", f"{group.topic}:2")) == [
        [group.topic, "2", "Successful"]
    ]
    assert group.offsets() == {0: EACH - 3, 1: EACH - 3, 3: EACH}
    printed = group.tool("--describe")
    assert f"Consumer group '{group.group_id}' has no active members." in printed
    assert rows(printed) == [
        [group.group_id, group.topic, str(p), str(offset), str(EACH), str(EACH - offset), "-", "-", "-"]
        for p, offset in sorted(group.offsets().items())
    ]
    printed = group.tool("--delete", "--group", "never-there")
    assert "'never-there' could not be deleted due to: " in printed
    assert "GroupIdNotFoundException" in printed
    assert f"These consumer groups were deleted successfully: '{group.group_id}'" in printed
    assert group.described().state == "Dead"
    assert_coordinated(options, group.group_id, joins=1)


def assert_at_work_it_is_refused(group: ToolsGroup) -> None:
    topic = ["--topic", group.topic]
    refusal = f"Assignments can only be reset if the group '{group.group_id}' is inactive"
    assert refusal in group.tool("--reset-offsets", *topic, "--to-earliest", "--execute")
    refused = rows(group.tool("--delete-offsets", *topic))
    assert [cells[:2] for cells in refused] == [[group.topic, str(p)] for p in range(PARTITIONS)]
    assert all("GroupSubscribedToTopicException" in cells[3] for cells in refused)
    assert "GroupNotEmptyException" in group.tool("--delete")
    assert group.described().state == "Stable"
    assert group.offsets() == dict.fromkeys(range(PARTITIONS), EACH)


def assert_offsets_are_reset(group: ToolsGroup) -> None:
    """Those of two partitions, to three records before where they are."""
    reset = ["--reset-offsets", "--topic", f"{group.topic}:0,1", "--shift-by", "-3"]
    moved = [[group.group_id, group.topic, str(p), str(EACH - 3)] for p in (0, 1)]
    assert sorted(rows(group.tool(*reset, "--dry-run"))) == moved
    assert group.offsets() == dict.fromkeys(range(PARTITIONS), EACH)
    assert sorted(rows(group.tool(*reset, "--execute"))) == moved
    assert group.offsets() == {0: EACH - 3, 1: EACH - 3, 2: EACH, 3: EACH}


def test_three_libraries_share_one_group(options: GatewayOptions, gateway: str, group: ToolsGroup) -> None:
    with ExitStack() as stack:
        settings = {"session_timeout_ms": str(JAVA_SESSION_MS), "heartbeat_interval_ms": "1000"}
        in_java = stack.enter_context(group.console_consumer(**settings))
        # So it leads the group, and assigns to members of the other libraries.
        group.wait_until("Stable", members=1)
        others: list[Member] = [
            stack.enter_context(closing(PythonMember(gateway, group.group_id, group.topic))),
            stack.enter_context(closing(ConfluentMember(gateway, group.group_id, group.topic))),
        ]
        group.wait_until("Stable", members=3)
        everyone: list[AnyMember] = [in_java, *others]
        before, later = range(1_000, 1_000 + RECORDS), range(2_000, 2_000 + RECORDS)
        produce(gateway, group.topic, before)
        taken = poll_all(before, *everyone)
        assert sorted(chain.from_iterable(taken)) == list(before)
        assert [{value % PARTITIONS for value in values} for values in taken] == [
            one.partitions() for one in everyone
        ]
        in_java.kill()
        produce(gateway, group.topic, later)
        poll_all(later, *others)
        share(*others)
    history = history_of(options.client_config, options.layout, group.group_id)
    *_, shared = [it for it in history if it.type == EntryType.STABLE and len(it.assignments or {}) == 3]
    (expired,) = [
        it for it in history if it.type == EntryType.MEMBER_REMOVED and "session timeout" in it.reason
    ]
    assert expired.member_id == shared.leader_id
    assert expired.client_id == "console-consumer"
    assert_coordinated(options, group.group_id, joins=3)


def test_the_configs_tool_shows_and_changes_the_settings_of_a_group(jvm: JavaShares) -> None:
    """The group may not exist yet."""
    group_id, setting = new_group(), "consumer.heartbeat.interval.ms=7000"
    jvm.configure(group_id, setting)
    shown = jvm.configs("--entity-type", "groups", "--describe")
    assert f"Dynamic configs for group {group_id} are:\n  {setting} sensitive=false" in shown


def test_java_consumers_share_and_resolve_patterns(
    options: GatewayOptions, gateway: str, group: ToolsGroup
) -> None:
    """Two consumers share the topic, and the groups tool shows their epochs and targets. One is killed and
    the other one has all. When that one has left, the tool resets the offsets and deletes the group.

    The killed consumer subscribes by a pattern that Java resolves.
    """
    group_id, topic = group.group_id, group.topic
    with (
        group.console_consumer(group_protocol="consumer") as one,
        group.tools.console_consumer(group_id, f"^{topic}.*", group_protocol="consumer") as two,
    ):
        wait_until(lambda: group.is_shared(2), "two consumers with a half each")
        ((name, _, _, assignor, state, *_, members),) = rows(group.tool("--describe", "--state", "--verbose"))
        assert (name, assignor, state, members) == (group_id, "uniform", "Stable", "2")
        described = group.members()
        assert len({epoch for cells in described for epoch in (cells[5], cells[7])}) == 1
        assert [cells[6] for cells in described] == [cells[8] for cells in described]
        assert [group_id, "Stable"] in rows(group.jvm.groups("--list", "--state"))
        two.kill()
        wait_until(lambda: group.is_shared(1), "the partitions of the killed consumer")
        later = range(1_000, 1_000 + RECORDS)
        produce(gateway, topic, later)
        assert poll_all(later, one) == [[*later]]
        assert "is inactive" in group.tool("--reset-offsets", "--topic", topic, "--to-earliest", "--execute")
        assert "GroupNotEmptyException" in group.tool("--delete")
    assert group.offsets() == dict.fromkeys(range(PARTITIONS), 2 * EACH)
    reset = group.tool("--reset-offsets", "--topic", topic, "--shift-by", "-3", "--execute")
    assert sorted(cells[3] for cells in rows(reset)) == [str(2 * EACH - 3)] * PARTITIONS
    assert f"('{group_id}') was successful" in group.tool("--delete")
    history = history_of(options.client_config, options.layout, group_id)
    removed = [entry.reason for entry in history if entry.type == EntryType.MEMBER_REMOVED]
    assert ["session" in reason for reason in removed] == [True, False]


def poll_all(expected: range, *members: AnyMember) -> list[list[int]]:
    """Poll until a member has received each of these records. Return the records of each member, in order.
    After a rebalance, records may be received again.
    """
    taken: list[list[int]] = [[] for _ in members]

    def is_all() -> bool:
        for member, values in zip(members, taken, strict=True):
            values += [value for value in member.poll() if value in expected]
        return set(expected) == {value for values in taken for value in values}

    wait_until(is_all, f"{len(expected)} records")
    return [sorted(values) for values in taken]
