"""Unmodified consumers with `group.protocol=consumer` through the gateway: librdkafka's, and kafka-python's
classic one beside it. Kafka's Java consumer is in tests/slow.

A story has a group of its own and mostly waits, so all are told at a time.
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest
from confluent_kafka import KafkaException

from gateway.net.server import GatewayOptions
from kafka_why.connections import kafka_clients
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from tests.e2e.gateway_clients import (
    PARTITIONS,
    RECORDS,
    ConfluentMember,
    Member,
    PythonMember,
    assert_coordinated,
    consume_and_commit,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import create_topic, history_of, wait_until
from tests.harness import form

pytestmark = pytest.mark.e2e

GROWN = 6


@dataclass
class ConsumerProtocolGroup:
    """A group of consumers on a topic of its own, which `stack` closes."""

    options: GatewayOptions
    gateway: str
    stack: ExitStack
    group_id: str = field(default_factory=new_group)
    topic: str = field(default_factory=lambda: f"orders-{uuid.uuid4()}")
    joins: int = 0

    def join(self, topic: str | None = None, instance_id: str | None = None) -> ConfluentMember:
        """Return a new member by the consumer protocol."""
        self.joins += 1
        return self.restart(topic, instance_id)

    def restart(self, topic: str | None = None, instance_id: str | None = None) -> ConfluentMember:
        """Return a static member that takes another's place."""
        member = ConfluentMember(
            self.gateway,
            self.group_id,
            topic or self.topic,
            instance_id=instance_id,
            is_of_consumer_protocol=True,
        )
        return self.stack.enter_context(closing(member))

    def join_classic(self) -> PythonMember:
        """Return a new member by the classic protocol, of another library."""
        self.joins += 1
        return self.stack.enter_context(closing(PythonMember(self.gateway, self.group_id, self.topic)))

    def history(self, *types: EntryType) -> list[HistoryEntry]:
        history = history_of(self.options.client_config, self.options.layout, self.group_id)
        return [entry for entry in history if entry.type in types]


def names(group: ConsumerProtocolGroup) -> None:
    """Members come and go. What a member keeps is never taken from it."""
    first = group.join()
    share(first)
    second = group.join()
    share(first, second)
    assert [gone for gone in first.moves.revoked if gone] == [second.partitions()]
    consume_and_commit(group.gateway, group.topic, first, second)
    first.close()
    share(second)
    assert not any(second.moves.revoked)
    assert second.committed(group.topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


def growth(group: ConsumerProtocolGroup) -> None:
    """A topic gets more partitions. The watcher sees it, and no member asks."""
    one, two = group.join(), group.join()
    share(one, two)
    before = one.partitions(), two.partitions()
    with closing(kafka_clients.admin(group.options.client_config)) as admin:
        admin.create_partitions({group.topic: GROWN})
    wait_until(lambda: len(one.partitions() | two.partitions()) == GROWN, "all partitions of the grown topic")
    assert before[0] <= one.partitions()
    assert before[1] <= two.partitions()
    assert not one.partitions() & two.partitions()


def pattern(group: ConsumerProtocolGroup) -> None:
    """A pattern matches a topic that is made later, and no other."""
    member = group.join(f"^{group.topic}.*")
    share(member)
    later = f"{group.topic}-later"
    for name in (f"other-{group.topic}", later):
        create_topic(group.options.client_config, name, PARTITIONS, {})
    wait_until(lambda: later in member.topics(), "the topic that came later")
    assert member.topics() == {group.topic, later}


def static_members(group: ConsumerProtocolGroup) -> None:
    """Who comes back within the session has its partitions, and nobody else notices."""
    one, two = group.join(instance_id="one"), group.join(instance_id="two")
    share(one, two)
    held, epochs = one.partitions(), len(group.history(EntryType.GROUP_EPOCH_BUMPED))
    lost = len(two.moves.revoked)
    one.close()
    again = group.restart(instance_id="one")
    wait_until(lambda: again.partitions() == held, "the same partitions after the restart")
    duplicate = group.restart(instance_id="one")
    with pytest.raises(KafkaException, match="still used by another member"):
        wait_until(duplicate.notice_errors, "the error of the second one with this instance id")
    assert again.partitions() == held
    assert len(group.history(EntryType.GROUP_EPOCH_BUMPED)) == epochs
    assert not any(two.moves.revoked[lost:])


def mixed(group: ConsumerProtocolGroup) -> None:
    """A classic consumer of another library joins the group, and has it alone in the end."""
    consumer = group.join()
    share(consumer)
    classic = group.join_classic()
    share(consumer, classic)
    members: list[Member] = [consumer, classic]
    produce(group.gateway, group.topic, range(RECORDS))
    # Who joins once more reads again what it has not committed.
    seen: set[int] = set()

    def have_all() -> bool:
        seen.update(*(member.poll() for member in members))
        return len(seen) == RECORDS

    wait_until(have_all, "all records")
    for member in members:
        member.commit()
    consumer.close()
    share(classic)
    (converted,) = group.history(EntryType.GROUP_CONVERTED)
    assert "classic" in converted.reason


STORIES: dict[str, Callable[[ConsumerProtocolGroup], None]] = {
    "pattern": pattern,
    "growth": growth,
    "static-members": static_members,
    "mixed": mixed,
    "names": names,
}
# What the watcher tells groups, or by the requests of the others.
OF_ONE_FORM = ("pattern", "growth", "static-members")
Told = dict[str, Future[None]]


def tell(name: str, options: GatewayOptions, gateway: str) -> None:
    with ExitStack() as stack:
        group = ConsumerProtocolGroup(options, gateway, stack)
        create_topic(options.client_config, group.topic, PARTITIONS, {})
        STORIES[name](group)
    assert_coordinated(options, group.group_id, joins=group.joins)


@pytest.fixture(scope="module")
def told(options: GatewayOptions, gateway: str) -> Iterator[Told]:
    """All stories of this form by their name; some are being told yet."""
    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {
            name: pool.submit(tell, name, options, gateway)
            for name in STORIES
            if form.has_replica or name not in OF_ONE_FORM
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "story", [pytest.param(name, marks=[pytest.mark.one_form] * (name in OF_ONE_FORM)) for name in STORIES]
)
def test_consumer_protocol_clients_complete_the_story(told: Told, story: str) -> None:
    told[story].result()
