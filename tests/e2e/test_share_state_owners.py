"""Two owners of the topics, one after the other, of which the first one was killed or held still while its
share-state thread worked.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pytest

from connections import kafka_clients
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from state.errors import ErrorCode
from state.kafka.share_requests import ShareStatePartition
from streaming.service.share_state import thread as share_state
from streaming.service.share_state.broker_coordinators import BrokerCoordinators
from streaming.service.share_state.carrying_out import Key, Summary
from streaming.service.share_state.thread import ShareStateThread
from tests.e2e.harness import wait_until
from tests.e2e.share_tasks import NO_STATE, Groups, Topic, to_initialize, working

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

Owner = Callable[[ClientConfig, TopicLayout], None]
HELD_S = 0.5
"""After so long what was read is too old for a change."""


@pytest.fixture
def orders(broker: EmbeddedBroker) -> Iterator[Topic]:
    with BrokerCoordinators(broker.client_config, lambda: True) as calls:
        topic = Topic(broker.client_config, calls)
        assert topic.recorded() == NO_STATE
        yield topic


@pytest.fixture
def groups(broker: EmbeddedBroker, orders: Topic) -> Iterator[Groups]:
    """They show one task of one partition."""
    with closing(kafka_clients.producer(broker.client_config)) as producer:
        groups = Groups(broker.client_config, producer)
        groups.publish(orders.group_id, to_initialize("1-0#0", orders, [0], epoch=2))
        yield groups


def dies_before_its_record(client_config: ClientConfig, layout: TopicLayout) -> None:
    """A process whose thread is killed when the share coordinator has answered, before it tells that."""
    ShareStateThread._tell = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    with working(client_config, layout):
        signal.pause()


def stops_before_its_change(client_config: ClientConfig, layout: TopicLayout) -> None:
    """A process that is held still when its thread has read that there is no state. It takes itself for the
    owner when it goes on.
    """
    share_state.ROUND_MAX_S = HELD_S
    read = BrokerCoordinators.read

    def read_and_stop(
        self: BrokerCoordinators, node_id: int | None, keys: Sequence[Key]
    ) -> Mapping[Key, Summary]:
        found = read(self, node_id, keys)
        BrokerCoordinators.read = read  # type: ignore[method-assign]
        # To this thread, which takes no further step then.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return found

    BrokerCoordinators.read = read_and_stop  # type: ignore[method-assign]
    with working(client_config, layout):
        signal.pause()


@contextmanager
def another_owner(how: Owner, groups: Groups) -> Iterator[int]:
    """A process, by its id."""
    owner = multiprocessing.get_context("spawn").Process(
        target=how, args=(groups.client_config, groups.layout)
    )
    owner.start()
    assert owner.pid is not None
    try:
        yield owner.pid
    finally:
        owner.kill()
        owner.join()


def wait_for_its(event: int, pid: int) -> None:
    """Wait until the process has stopped (WSTOPPED), or ended (WEXITED)."""
    wait_until(
        lambda: os.waitid(os.P_PID, pid, event | os.WNOHANG | os.WNOWAIT) is not None,
        f"process {pid}: {event}",
    )


def test_an_owner_that_is_killed_before_its_record_changes_nothing_twice(
    orders: Topic, groups: Groups
) -> None:
    """Row SP13."""
    with another_owner(dies_before_its_record, groups) as pid:
        wait_for_its(os.WEXITED, pid)
    assert orders.recorded() == Summary(0, 2, -1)
    assert groups.told() == []
    assert orders.write(orders.item(2, 70)) == ErrorCode.NONE, "progress of the group"
    with working(groups.client_config, groups.layout):
        assert groups.wait_for("1-0#0") == [ShareStatePartition(orders.id, 0)]
    assert orders.recorded() == Summary(0, 2, 70)


def test_an_owner_that_was_held_still_does_not_act_on_what_it_read_before(
    orders: Topic, groups: Groups
) -> None:
    """Row SP18: another one has initialized the partition meanwhile, and the group has come further."""
    with another_owner(stops_before_its_change, groups) as pid:
        wait_for_its(os.WSTOPPED, pid)
        stopped_s = time.monotonic()
        with working(groups.client_config, groups.layout):
            groups.wait_for("1-0#0")
        assert orders.write(orders.item(2, 70)) == ErrorCode.NONE, "progress of the group"
        wait_until(lambda: time.monotonic() - stopped_s > HELD_S, "what it read is old")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: len(groups.told()) == 2, "it has read again, and tells the same")
    assert [one.partitions for one in groups.told()] == [[ShareStatePartition(orders.id, 0)]] * 2
    assert orders.recorded() == Summary(0, 2, 70)
