"""A running group moves from the classic protocol to the consumer protocol and back: unmodified consumers
(librdkafka) through the gateway, with a real broker and the coordinator behind it.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count, pairwise

import pytest
from kafka import KafkaProducer

from gateway.service import GatewayOptions
from state.kafka.history import EntryType
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, share
from tests.e2e.harness import history_of, wait_until

pytestmark = pytest.mark.e2e

MEMBERS = 3
RECORD_INTERVAL_S = 0.02
# So long may a running member be without partitions, while others join, leave and hand over.
WITHOUT_PARTITIONS_S = 40.0
COMMITTING = {"enable.auto.commit": True, "auto.commit.interval.ms": 500}


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


def join(gateway: str, group: str, topic: str, *, is_of_consumer_protocol: bool) -> ConfluentMember:
    return ConfluentMember(
        gateway,
        group,
        topic,
        assignor="cooperative-sticky",
        is_of_consumer_protocol=is_of_consumer_protocol,
        settings=COMMITTING,
    )


def test_a_group_moves_to_the_consumer_protocol_and_back(
    options: GatewayOptions, gateway: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rolling restart there and another one back, while records flow."""
    group, everyone, taken = new_group(), list[ConfluentMember](), set[int]()

    def take(flow: Flow) -> bool:
        for member in everyone:
            taken.update(member.poll())
        return taken >= set(range(flow.sent))

    with ExitStack() as stack, Flow(gateway, topic).running() as flow:

        def start(*, is_of_consumer_protocol: bool) -> ConfluentMember:
            member = join(gateway, group, topic, is_of_consumer_protocol=is_of_consumer_protocol)
            everyone.append(stack.enter_context(closing(member)))
            return everyone[-1]

        members = [start(is_of_consumer_protocol=False) for _ in range(MEMBERS)]
        share(*members)
        for is_of_consumer_protocol in (True, False):
            for place in range(MEMBERS):
                members[place].close()
                members[place] = start(is_of_consumer_protocol=is_of_consumer_protocol)
                share(*members)
                take(flow)
        flow.stop()
        wait_until(lambda: take(flow), f"all of {flow.sent} records")
        moves = [list(member.moves.times) for member in everyone]
    longest_s = max(map(longest_without_s, moves))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{flow.sent} records, a member without partitions for {longest_s:.1f} s at most\n"
        )
    assert taken == set(range(flow.sent))
    assert_one_owner(moves)
    assert longest_s < WITHOUT_PARTITIONS_S
    history = history_of(options.client_config, options.layout, group)
    converted = [entry for entry in history if entry.type == EntryType.GROUP_CONVERTED]
    assert len(converted) == 2
    removed = [entry.reason for entry in history if entry.type == EntryType.MEMBER_REMOVED]
    assert not [reason for reason in removed if "timeout" in reason]


Times = list[tuple[float, bool, set[int]]]


def assert_one_owner(moves: list[Times]) -> None:
    """No partition comes to a member before the one that had it gave it up."""
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
    """The longest time between two calls during which the member had no partition, once it had some."""
    longest_s, held = 0.0, set[int]()
    for (at_s, came, partitions), (next_s, _, _) in pairwise(times):
        held = held | partitions if came else held - partitions
        if not held:
            longest_s = max(longest_s, next_s - at_s)
    return longest_s
