"""Running groups move from the classic protocol to the consumer protocol and back: unmodified consumers of
Kafka's own library and of librdkafka through the gateway, with a real broker and the coordinator behind it.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, pairwise, product
from pathlib import Path

import pytest
from kafka import KafkaProducer

from cli import main
from gateway.net.server import GatewayOptions
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, share
from tests.e2e.harness import history_of, wait_until
from tests.harness.commands import invoke
from tests.harness.kafkas_consumers import JavaConsumers, JavaMember
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

MEMBERS = 3
RECORD_INTERVAL_S = 0.02
# So long may a running member be without partitions, while others join, leave and hand over.
WITHOUT_PARTITIONS_S = 40.0
COMMITTING = {"enable.auto.commit": True, "auto.commit.interval.ms": 500}

AnyMember = ConfluentMember | JavaMember


class Flow:
    """Records with the numbers 0, 1, ..., one after the other, as long as the block lasts."""

    def __init__(self, servers: str, topic: str) -> None:
        self.sent = 0
        self._topic, self._stopped = topic, threading.Event()
        self._producer = KafkaProducer(bootstrap_servers=servers)
        self._thread = threading.Thread(target=self._run, name="flow")

    @contextmanager
    def running(self) -> Iterator["Flow"]:
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        for number in count():
            value = str(number).encode()
            self._producer.send(self._topic, value, partition=number % PARTITIONS).get(30)
            self.sent = number + 1
            if self._stopped.wait(RECORD_INTERVAL_S):
                return


@dataclass
class Migration:
    """A group, its present and former members, and the records that any of them received. `joins` starts the
    member of each position. `assignor` is for the classic protocol.
    """

    options: GatewayOptions
    topic: str
    joins: Sequence[Callable[..., AnyMember]]
    assignor: str
    stack: ExitStack
    group_id: str = field(default_factory=new_group)
    members: dict[int, AnyMember] = field(default_factory=dict)
    everyone: list[AnyMember] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    def start(self, place: int, *, is_of_consumer_protocol: bool) -> None:
        member = self.joins[place](
            self.group_id, self.topic, assignor=self.assignor, is_of_consumer_protocol=is_of_consumer_protocol
        )
        self.everyone.append(self.stack.enter_context(closing(member)))
        self.members[place] = member

    def restart(self, place: int, *, is_of_consumer_protocol: bool) -> None:
        self.members[place].close()
        self.start(place, is_of_consumer_protocol=is_of_consumer_protocol)

    def has_all(self, sent: int) -> bool:
        """Return True if all records have come."""
        for member in self.everyone:
            self.taken.update(member.poll())
        return self.taken >= set(range(sent))

    def history(self, kind: EntryType) -> list[HistoryEntry]:
        history = history_of(self.options.client_config, self.options.layout, self.group_id)
        return [entry for entry in history if entry.type == kind]


def test_groups_move_to_the_consumer_protocol_and_back(
    options: GatewayOptions, gateway: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rolling restart there and another one back, while records flow: an eager group of both libraries, and
    a cooperative one of Kafka's own. `groups describe --state` says how far it is.

    A cooperative group whose leader is librdkafka's cannot move (docs/consumer-protocol.md).
    """
    with (
        JavaConsumers(gateway, tmp_path) as java,
        ExitStack() as stack,
        Flow(gateway, topic).running() as flow,
    ):
        librdkafka = partial(ConfluentMember, gateway, settings=COMMITTING)
        both = [
            Migration(options, topic, [java.join, librdkafka, librdkafka], "range", stack),
            Migration(options, topic, [java.join] * MEMBERS, "cooperative-sticky", stack),
        ]
        for group, place in product(both, range(MEMBERS)):
            group.start(place, is_of_consumer_protocol=False)
        for group in both:
            share(*group.members.values())
        states = []
        for is_of_consumer_protocol, place in product((True, False), range(MEMBERS)):
            restart = partial(Migration.restart, place=place, is_of_consumer_protocol=is_of_consumer_protocol)
            with ThreadPoolExecutor() as pool:
                list(pool.map(restart, both))
            for group in both:
                share(*group.members.values())
                group.has_all(flow.sent)
            if place == 0:
                states.append(described(options, both))
        flow.stop()
        states.append(described(options, both))
        for group in both:
            wait_until(partial(group.has_all, flow.sent), f"all of {flow.sent} records")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda member: member.close(), chain(both[0].everyone, both[1].everyone)))
    with capsys.disabled():
        sys.stdout.write(f"\n{flow.sent} records\n")
        for group in both:
            judge(group)
    assert states == [[("Consumer", 2)] * 2, [("Consumer", 1)] * 2, [("Classic", 0)] * 2]


def described(options: GatewayOptions, groups: Iterable[Migration]) -> list[tuple[str, int]]:
    """Return what `groups describe --state` says: type, and number of members that the conversion waits
    for.
    """
    command = ["groups", "describe", "--state", "-o", "json", "--prefix", PREFIX]
    command += ["--bootstrap-servers", options.client_config.bootstrap_servers]
    command += [part for group in groups for part in ("--group", group.group_id)]
    result = invoke(main, command)
    assert result.exit_code == 0, result.output
    return [(row["type"], len(row.get("classic_members", []))) for row in json.loads(result.stdout)]


def judge(group: Migration) -> None:
    """Each member was served all the time, and the group has moved twice."""
    moves = [list(member.moves.times) for member in group.everyone]
    longest_s = max(map(longest_without_s, moves))
    sys.stdout.write(f"{group.assignor}: a member without partitions for {longest_s:.1f} s at most\n")
    assert_one_owner(moves)
    assert longest_s < WITHOUT_PARTITIONS_S
    assert len(group.history(EntryType.GROUP_CONVERTED)) == 2
    removed = [entry.reason for entry in group.history(EntryType.MEMBER_REMOVED)]
    assert not [reason for reason in removed if "timeout" in reason]


Times = list[tuple[float, bool, set[int]]]


def assert_one_owner(moves: list[Times]) -> None:
    """Check that no member gets a partition before its previous owner has revoked it."""
    calls = sorted(
        (at_s, came, partition, member)
        for member, times in enumerate(moves)
        for at_s, came, partitions in times
        for partition in partitions
    )
    owner: dict[int, int] = {}
    for _, came, partition, member in calls:
        assert owner.get(partition, member) == member, f"partition {partition} came to {member}"
        if came:
            owner[partition] = member
        else:
            owner.pop(partition, None)


def longest_without_s(times: Times) -> float:
    """Return the longest time between two calls during which the member had no partition, once it had
    some.
    """
    longest_s, held = 0.0, set[int]()
    for (at_s, came, partitions), (next_s, _, _) in pairwise(times):
        held = held | partitions if came else held - partitions
        if not held:
            longest_s = max(longest_s, next_s - at_s)
    return longest_s
