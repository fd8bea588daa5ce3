"""Everyday stories of consumers at one gateway and coordinator: two client libraries by the classic protocol,
and librdkafka by the consumer protocol. Kafka's Java consumer is in tests/slow.

A story has its own group and mostly waits, so several run at a time. Each ends with a check of the events
topic, and of the broker, which must have no such group.
"""

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from cli.processes.child import Child
from gateway.net.server import GatewayOptions
from kafka_why.connections import kafka_clients
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.messages import ErrorCode
from tests.e2e.gateway_admins import ConfluentAdmin, PythonAdmin
from tests.e2e.gateway_clients import (
    PARTITIONS,
    RECORDS,
    ConfluentMember,
    Member,
    PythonMember,
    assert_coordinated,
    consume,
    consume_and_commit,
    new_group,
    produce,
    share,
)
from tests.e2e.gateway_victim import COMMITTED
from tests.e2e.harness import WAIT_TIMEOUT_S, create_topic, history_of, wait_until
from tests.harness import form

pytestmark = pytest.mark.e2e

Library = type[PythonMember] | type[ConfluentMember]
LIBRARIES: dict[str, Library] = {"kafka-python": PythonMember, "librdkafka": ConfluentMember}
ADMINS: dict[Library, type[PythonAdmin] | type[ConfluentAdmin]] = {
    PythonMember: PythonAdmin,
    ConfluentMember: ConfluentAdmin,
}
SHORT_SESSION_MS = 10_000
AT_ONCE = 6
GROWN = 6


@dataclass
class LibraryGroup:
    """One library's consumers, on their own topic. `stack` closes them, also if the story fails."""

    options: GatewayOptions
    gateway: str
    library: Library
    stack: ExitStack
    logs: Path
    group_id: str = field(default_factory=new_group)
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4()}")
    joins: int = 0

    def join(self, topic: str | None = None, **settings: Any) -> Member:
        """Return a new member."""
        self.joins += 1
        return self.restart(topic, **settings)

    def restart(self, topic: str | None = None, **settings: Any) -> Member:
        """Return a static member that takes another's place."""
        member = self.library(self.gateway, self.group_id, topic or self.topic, **settings)
        return self.stack.enter_context(closing(member))

    def join_consumer(self, topic: str | None = None, **settings: Any) -> Member:
        """Return a new member that uses the consumer protocol."""
        return self.join(topic, is_of_consumer_protocol=True, **settings)

    def produce(self, *values: int) -> None:
        produce(self.gateway, self.topic, values)

    def history(self, *types: EntryType) -> list[HistoryEntry]:
        history = history_of(self.options.client_config, self.options.layout, self.group_id)
        return [event for event in history if event.type in types]


def cooperative_sticky(group: LibraryGroup) -> None:
    """KIP-429: partitions that stay are never revoked; one that moves is free for one generation."""
    first = group.join(assignor="cooperative-sticky")
    share(first)
    second = group.join(assignor="cooperative-sticky")
    share(first, second)
    assert [gone for gone in first.moves.revoked if gone] == [second.partitions()]
    assert not any(second.moves.revoked)
    kept, moved = sorted(first.partitions()), sorted(second.partitions())
    # kafka-python's consumer may join once more than needed, alone and with the second, and changes no plan
    # then. As leader it plans nothing until it knows the topic's partitions. Of the last two plans one takes
    # partitions from the first member, the other gives them to the second.
    stable = group.history(EntryType.STABLE)
    plans = [plan for plan, _ in groupby(map(planned, stable)) if any(plan)]
    assert plans == [[list(range(PARTITIONS))], sorted([[], kept]), sorted([kept, moved])]


def planned(stable: HistoryEntry) -> list[list[int]]:
    """Return the partitions of each member in a generation's assignment."""
    return sorted(map(parts, (stable.assignments or {}).values()))


def parts(assignment: bytes) -> list[int]:
    """Return the partitions that a client's assignment gives a member."""
    topics = ConsumerProtocolAssignment.decode(assignment).assigned_partitions
    return sorted(partition for topic in topics for partition in topic.partitions)


def static_members(group: LibraryGroup) -> None:
    """KIP-345: a static member that returns within its session continues. One that is replaced is fenced."""
    members = {name: group.join(instance_id=name) for name in ("one", "two")}
    share(*members.values())
    # kafka-python's consumer may join once more than needed. Of the leader that begins a rebalance (E9), of
    # another member it does not.
    leader = str(group.history(EntryType.STABLE)[-1].leader_id)
    goes, stays = sorted(
        members, key=lambda name: leader.startswith(f"{name}-") is (group.library is PythonMember)
    )
    held, rounds = members[goes].partitions(), len(group.history(EntryType.PREPARING_REBALANCE))
    shared = len(members[stays].moves.revoked)
    members[goes].close()
    again = group.restart(instance_id=goes)
    wait_until(lambda: again.partitions() == held, "the same partitions after the restart")
    duplicate = group.restart(instance_id=goes)
    wait_until(lambda: duplicate.partitions() == held, "the same partitions for the duplicate")
    with pytest.raises(group.library.FENCED, match=r"(?i)fenced"):
        wait_until(lambda: again.notice_errors(), "the error of who is fenced")
    assert not any(members[stays].moves.revoked[shared:])
    assert len(group.history(EntryType.PREPARING_REBALANCE)) == rounds
    assert len(group.history(EntryType.MEMBER_REPLACED)) == 2


def commits(group: LibraryGroup) -> None:
    """Offsets are visible to all clients, and the next owner of a partition continues from them."""
    one, two = group.join(), group.join()
    share(one, two)
    group.produce(*range(RECORDS))
    assert consume(RECORDS, one, two) == list(range(RECORDS))
    one.commit()

    def commits_asynchronously() -> bool:
        outcomes: list[object] = []
        two.commit_async(outcomes.append)
        wait_until(lambda: bool(outcomes), "the answer to the commit")
        return outcomes == [None]

    # Clients do not repeat an asynchronous commit, and a busy coordinator is not available for a while.
    wait_until(commits_asynchronously, "an acknowledged commit")
    ends = dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    assert one.committed(group.topic) == two.committed(group.topic) == ends
    two.close()
    share(one)
    group.produce(*range(100, 100 + RECORDS))
    assert consume(RECORDS, one) == list(range(100, 100 + RECORDS))


def crash(group: LibraryGroup) -> None:
    """A killed member is removed at its session timeout. Only its uncommitted records are read twice."""
    half = RECORDS // 2
    survivor = group.join(session_ms=SHORT_SESSION_MS)
    share(survivor)
    victim = start_victim(group, values_to_commit=half)
    wait_until(lambda: len(survivor.partitions()) == PARTITIONS // 2, "the survivor has half of it")
    group.produce(*range(RECORDS))
    seen = consume(half, survivor)
    survivor.commit()
    victim.wait_for_line(lambda line: line.strip() == COMMITTED, WAIT_TIMEOUT_S)
    group.produce(*range(RECORDS, 2 * RECORDS))
    seen += consume(half, survivor)
    survivor.commit()
    wait_until(lambda: len(values_of(victim)) == RECORDS, "the victim has read its half")
    victim.kill()
    group.produce(*range(2 * RECORDS, 3 * RECORDS))
    seen += consume(half, survivor)
    survivor.commit()
    seen += consume(2 * half, survivor)
    (removed,) = group.history(EntryType.MEMBER_REMOVED)
    assert f"session timeout of {SHORT_SESSION_MS} ms" in removed.reason
    uncommitted = [value for value in values_of(victim) if value >= RECORDS]
    assert Counter(seen + values_of(victim)) == Counter([*range(3 * RECORDS), *uncommitted])


def start_victim(group: LibraryGroup, values_to_commit: int) -> Child:
    """Return a member in its own process."""
    group.joins += 1
    member = (group.library.__name__, group.gateway, group.group_id, group.topic)
    arguments = ("-m", "tests.e2e.gateway_victim", *member, str(SHORT_SESSION_MS), str(values_to_commit))
    victim = Child("victim", arguments, group.logs / f"{group.group_id}.log", program=Path(sys.executable))
    group.stack.callback(victim.stop)
    return victim


def values_of(victim: Child) -> list[int]:
    """Return the values that the process has read so far."""
    return [int(line) for line in victim.log_path.read_text().splitlines() if line.isdigit()]


def pattern(group: LibraryGroup) -> None:
    """A topic that is created later matches the subscription, and a rebalance assigns it."""
    member = group.join(f"^{group.topic}.*", poll_ms=10_000)
    wait_until(lambda: member.topics() == {group.topic}, "the topic there is")
    later = f"{group.topic}-later"
    create_topic(group.options.client_config, later, PARTITIONS, {})
    wait_until(lambda: member.topics() == {group.topic, later}, "the topic that came")
    produce(group.gateway, later, range(RECORDS))
    assert consume(RECORDS, member) == list(range(RECORDS))


def administration(group: LibraryGroup) -> None:
    """Admin clients see the group, and change it when it has no members."""
    name, topic = group.group_id, group.topic
    with ADMINS[group.library](group.gateway) as admin:
        member = group.join()
        share(member)
        group.produce(*range(RECORDS))
        consume(RECORDS, member)
        member.commit()
        wait_until(lambda: admin.states().get(name) == "STABLE", "the group is listed as stable")
        assert admin.describe(name) == ("STABLE", 1)
        assert admin.delete(name) is ErrorCode.NON_EMPTY_GROUP
        assert admin.alter_offsets(name, topic, {0: 1}) == {ErrorCode.UNKNOWN_MEMBER_ID}
        if isinstance(admin, PythonAdmin):
            assert admin.delete_offsets(name, topic, 0) == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
        member.close()
        assert admin.describe(name) == ("EMPTY", 0)
        assert admin.alter_offsets(name, topic, {0: 3, 1: 4}) == {ErrorCode.NONE}
        assert admin.offsets(name) == {0: 3, 1: 4, 2: 10, 3: 10}
        if isinstance(admin, PythonAdmin):
            assert admin.delete_offsets(name, topic, 2) == {ErrorCode.NONE}
            assert admin.offsets(name) == {0: 3, 1: 4, 3: 10}
        assert admin.delete(name) is ErrorCode.NONE
        assert admin.delete(name) is ErrorCode.GROUP_ID_NOT_FOUND
        assert admin.offsets(name) == {}
        wait_until(lambda: name not in admin.states(), "the group is not listed any more")


def consumers(group: LibraryGroup) -> None:
    """Members of the consumer protocol join and leave. A partition that a member keeps is never revoked."""
    first = group.join_consumer()
    share(first)
    second = group.join_consumer()
    share(first, second)
    assert [gone for gone in first.moves.revoked if gone] == [second.partitions()]
    consume_and_commit(group.gateway, group.topic, first, second)
    first.close()
    share(second)
    assert not any(second.moves.revoked)
    assert second.committed(group.topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


def consumers_topic_grows(group: LibraryGroup) -> None:
    """The topic watcher sees the new partitions, without a request of a member."""
    one, two = group.join_consumer(), group.join_consumer()
    share(one, two)
    before = one.partitions(), two.partitions()
    with closing(kafka_clients.admin(group.options.client_config)) as admin:
        admin.create_partitions({group.topic: GROWN})
    wait_until(lambda: len(one.partitions() | two.partitions()) == GROWN, "all partitions of the grown topic")
    assert before[0] <= one.partitions()
    assert before[1] <= two.partitions()
    assert not one.partitions() & two.partitions()


def consumers_pattern(group: LibraryGroup) -> None:
    """A pattern matches a topic that is created later, and no other."""
    member = group.join_consumer(f"^{group.topic}.*")
    share(member)
    later = f"{group.topic}-later"
    for name in (f"other-{group.topic}", later):
        create_topic(group.options.client_config, name, PARTITIONS, {})
    wait_until(lambda: later in member.topics(), "the topic that came later")
    assert member.topics() == {group.topic, later}


def static_consumers(group: LibraryGroup) -> None:
    """A member that comes back within its session has its partitions, and no other member rebalances."""
    one, two = (group.join_consumer(instance_id=name) for name in ("one", "two"))
    share(one, two)
    held, epochs = one.partitions(), len(group.history(EntryType.GROUP_EPOCH_BUMPED))
    lost = len(two.moves.revoked)
    one.close()
    again = group.restart(instance_id="one", is_of_consumer_protocol=True)
    wait_until(lambda: again.partitions() == held, "the same partitions after the restart")
    duplicate = group.restart(instance_id="one", is_of_consumer_protocol=True)
    with pytest.raises(KafkaException, match="still used by another member"):
        wait_until(duplicate.notice_errors, "the error of the second one with this instance id")
    assert again.partitions() == held
    assert len(group.history(EntryType.GROUP_EPOCH_BUMPED)) == epochs
    assert not any(two.moves.revoked[lost:])


def mixed(group: LibraryGroup) -> None:
    """A classic consumer of another library joins the group, and has it alone in the end."""
    consumer = group.join_consumer()
    share(consumer)
    group.library = PythonMember
    classic = group.join()
    share(consumer, classic)
    group.produce(*range(RECORDS))
    # Who joins once more reads again what it has not committed.
    seen: set[int] = set()

    def have_all() -> bool:
        seen.update(consumer.poll(), classic.poll())
        return len(seen) == RECORDS

    wait_until(have_all, "all records")
    for member in (consumer, classic):
        member.commit()
    consumer.close()
    share(classic)
    (converted,) = group.history(EntryType.GROUP_CONVERTED)
    assert "classic" in converted.reason


# The longest first.
STORIES: dict[str, Callable[[LibraryGroup], None]] = {
    "crash": crash,
    "cooperative-sticky": cooperative_sticky,
    "static-members": static_members,
    "commits": commits,
    "pattern": pattern,
    "administration": administration,
}
OF_CONSUMERS: dict[str, Callable[[LibraryGroup], None]] = {
    "consumers-pattern": consumers_pattern,
    "consumers-topic-grows": consumers_topic_grows,
    "static-consumers": static_consumers,
    "mixed": mixed,
    "consumers": consumers,
}
PLAYED = [*product(STORIES, LIBRARIES), *((name, "librdkafka") for name in OF_CONSUMERS)]
# What clients do by themselves, however the coordinator answers, what the watcher tells groups, or what the
# requests of other stories do.
OF_CLIENTS = ("cooperative-sticky", "static-members", "pattern", *[*OF_CONSUMERS][:3])
Told = dict[tuple[str, str], Future[None]]


def tell(name: str, library: str, options: GatewayOptions, gateway: str, logs: Path) -> None:
    with ExitStack() as stack:
        group = LibraryGroup(options, gateway, LIBRARIES[library], stack, logs)
        create_topic(options.client_config, group.topic, PARTITIONS, {})
        (STORIES | OF_CONSUMERS)[name](group)
    assert_coordinated(options, group.group_id, joins=group.joins)


@pytest.fixture(scope="module")
def told(options: GatewayOptions, gateway: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Run all stories of this form, by their name and the library's. Some still run meanwhile."""
    logs = tmp_path_factory.mktemp("logs")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            (name, library): pool.submit(tell, name, library, options, gateway, logs)
            for name, library in PLAYED
            if form.has_replica or name not in OF_CLIENTS
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    ("story", "library"),
    [pytest.param(*story, marks=[pytest.mark.one_form] * (story[0] in OF_CLIENTS)) for story in PLAYED],
)
def test_unmodified_clients_complete_the_scripted_scenario(told: Told, story: str, library: str) -> None:
    told[story, library].result()
