"""A client: its consumer groups under one client id and one connection, and the times at which it acts. Each
group takes, keeps and gives up queues.

Every client of a group computes its own share. While the clients' views differ, two clients may have one
queue, or no client may have it. Source: RebalanceImpl.java, RebalancePushImpl.java, MQClientInstance.java,
DefaultMQPushConsumerImpl.java, ConsumeMessageOrderlyService.java.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass

import structlog

from assignors.rocketmq.api import (
    IllegalArgumentException,
    NullPointerException,
)
from clients.rocketmq.api import RETRY_GROUP_TOPIC_PREFIX, Broker, ConsumerConfig
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import MessageModel, SubscriptionData
from kafka_why.contract.rocketmq.shares import sort_client_ids, sort_queues
from state.rocketmq.split import ConsumerData, HeartbeatData

# A queue that a client has. Source: ProcessQueue.java.


PULL_MAX_IDLE_MS = 120_000
LOCK_MAX_LIVE_MS = 30_000


@dataclass(slots=True)
class ProcessQueue:
    """The client's state of one queue. `next_offset` is the first unprocessed offset.

    `locked` and `last_lock_ms` count only for orderly consumption. Times are in milliseconds.
    """

    next_offset: int
    last_pull_ms: int
    locked: bool = False
    last_lock_ms: int = 0

    def is_pull_expired(self, now_ms: int) -> bool:
        """Return True if the last pull was more than PULL_MAX_IDLE_MS ago, so pulling must have stopped."""
        return now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def is_locked(self, now_ms: int) -> bool:
        """Return True if the lock is held and was renewed within LOCK_MAX_LIVE_MS."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_MAX_LIVE_MS

    def lock(self, now_ms: int) -> None:
        """Record that the broker gave this client the lock at `now_ms`."""
        self.locked, self.last_lock_ms = True, now_ms


LOCK_AGAIN_MS = 500

log = structlog.get_logger()


class GroupRebalance:
    """The group's process queue table, and the operations on it.

    `again_at_ms` is the latest time of the next round after a lock was refused, None if none was refused.
    `subscription_version_ms` is the version of the subscriptions in the next heartbeat. `heartbeat_is_due` is
    true after a change that brokers have to learn of. Times are in milliseconds.
    """

    def __init__(self, config: ConsumerConfig, client_id: str, broker: Broker, now_ms: int) -> None:
        self.config = config
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        self.subscription_version_ms = now_ms
        self.again_at_ms: int | None = None
        self.heartbeat_is_due = False
        self.paused = False
        self._client_id = client_id
        self._broker = broker

    def do_rebalance(self, now_ms: int) -> bool:
        """Rebalance all topics. Returns whether the client has exactly its share of each.

        A topic that fails does not stop the others.
        """
        self.again_at_ms = None
        if self.paused:
            return False
        balanced = True
        for topic in list(self.config.subscriptions):
            try:
                balanced &= self._by_topic(topic, now_ms)
            except (IllegalArgumentException, NullPointerException) as error:
                log.warning("a strategy refuses", group=self.config.group_id, topic=topic, error=str(error))
                balanced = False
            except Exception:
                if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                    log.exception("rebalancing failed", group=self.config.group_id, topic=topic)
                    balanced = False
        self._drop_other_topics()
        return balanced

    def held(self, topic: str) -> set[MessageQueue]:
        """Return the topic's queues that this client has now."""
        return {queue for queue in self.process_queues if queue.topic == topic}

    def may_consume(self, queue: MessageQueue, now_ms: int) -> bool:
        """Return True if messages of the queue may be processed now."""
        process = self.process_queues.get(queue)
        return process is not None and (not self._needs_locks or process.is_locked(now_ms))

    def lock_all(self, now_ms: int) -> None:
        """Renew the locks of all queues. A queue is not consumed while its lock is refused."""
        queues = list(self.process_queues)
        if not self._needs_locks or not queues:
            return
        locked = self._broker.lock(self.config.group_id, queues)
        for queue in queues:
            if queue in locked:
                self.process_queues[queue].lock(now_ms)
            else:
                self.process_queues[queue].locked = False

    def persist_all(self) -> None:
        """Store the next offset of every queue."""
        offsets = {queue: process.next_offset for queue, process in self.process_queues.items()}
        if offsets:
            self._broker.persist(self.config, offsets)

    def shut_down(self) -> None:
        """Store all offsets, release all locks and give up all queues."""
        self.persist_all()
        if self._needs_locks and self.process_queues:
            self._broker.unlock(self.config.group_id, list(self.process_queues))
        self.process_queues.clear()

    @property
    def _needs_locks(self) -> bool:
        return self.config.orderly and self.config.message_model is MessageModel.CLUSTERING

    def _by_topic(self, topic: str, now_ms: int) -> bool:
        queues = self._broker.topic_queues(topic)
        if queues is None:  # the client keeps its queues
            if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                self.config.listener(topic, frozenset(), frozenset())
            return True
        mq_all = frozenset(queues)
        divided: Set[MessageQueue] = mq_all
        if self.config.message_model is MessageModel.CLUSTERING:
            client_ids = self._broker.consumer_ids(self.config.group_id)
            if client_ids is None:
                return True
            divided = self._allocate(mq_all, client_ids)
        if self._update_process_queue_table(topic, divided, now_ms):
            self._message_queue_changed(topic, mq_all, divided, now_ms)
        return divided == self.held(topic)

    def _allocate(self, mq_all: Set[MessageQueue], client_ids: list[str]) -> frozenset[MessageQueue]:
        share = self.config.strategy.allocate(
            self.config.group_id, self._client_id, sort_queues(mq_all), sort_client_ids(client_ids)
        )
        return frozenset(share or ())

    def _update_process_queue_table(self, topic: str, divided: Set[MessageQueue], now_ms: int) -> bool:
        """Give up queues outside the share and queues without pulls, then take the new queues.

        Returns whether the table changed.
        """
        removed = [
            queue
            for queue, process in self.process_queues.items()
            if queue.topic == topic and (queue not in divided or process.is_pull_expired(now_ms))
        ]
        self._remove(removed)
        new = [queue for queue in sort_queues(divided) if queue not in self.process_queues]
        return self._add(new, now_ms) or bool(removed)

    def _remove(self, queues: list[MessageQueue]) -> None:
        """Drop queues, store their offsets, and release their locks.

        None of their messages is in processing, because one thread does rebalances and messages.
        """
        offsets = {queue: self.process_queues.pop(queue).next_offset for queue in queues}
        if offsets:
            self._broker.persist(self.config, offsets)
            if self._needs_locks:
                self._broker.unlock(self.config.group_id, queues)

    def _add(self, queues: list[MessageQueue], now_ms: int) -> bool:
        """Take new queues, for orderly consumption only those with a lock. Returns whether any was taken."""
        if self._needs_locks and queues:
            locked = self._broker.lock(self.config.group_id, queues)
            if len(locked) < len(queues):
                self.again_at_ms = now_ms + LOCK_AGAIN_MS
            queues = [queue for queue in queues if queue in locked]
        offsets = self._broker.start_offsets(self.config, queues) if queues else {}
        for queue, offset in offsets.items():
            process = self.process_queues[queue] = ProcessQueue(offset, last_pull_ms=now_ms)
            if self._needs_locks:
                process.lock(now_ms)
        return bool(offsets)

    def _message_queue_changed(
        self, topic: str, mq_all: Set[MessageQueue], divided: Set[MessageQueue], now_ms: int
    ) -> None:
        """Request a heartbeat for the brokers, and call the listener."""
        self.subscription_version_ms = now_ms
        self.heartbeat_is_due = True
        self.config.listener(topic, mq_all, divided)

    def _drop_other_topics(self) -> None:
        """Drop the queues of unsubscribed topics, without storing offsets or releasing locks."""
        for queue in [q for q in self.process_queues if q.topic not in self.config.subscriptions]:
            del self.process_queues[queue]


# The times at which a client rebalances. Source: RebalanceService.java, ServiceThread.java.


DEFAULT_WAIT_INTERVAL_MS = 20_000
DEFAULT_MIN_INTERVAL_MS = 1_000


class Schedule:
    """A round is due `wait_interval_ms` after the last one, or `min_interval_ms` after an unbalanced one.

    A wake-up makes a round due at once. Wake-ups coalesce. A wake-up within `min_interval_ms` of the last
    round waits for the rest of that time. Times are in milliseconds of one clock.
    """

    def __init__(
        self,
        now_ms: int,
        wait_interval_ms: int = DEFAULT_WAIT_INTERVAL_MS,
        min_interval_ms: int = DEFAULT_MIN_INTERVAL_MS,
    ) -> None:
        self._wait_interval_ms = wait_interval_ms
        self._min_interval_ms = min_interval_ms
        self._last_ms = now_ms
        self.due_ms = now_ms + wait_interval_ms

    def wake(self, at_ms: int) -> None:
        """Make a round due at `at_ms`, unless one is due earlier."""
        self.due_ms = min(self.due_ms, max(at_ms, self._last_ms + self._min_interval_ms))

    def ran(self, now_ms: int, *, balanced: bool) -> None:
        """Record that a round ended at `now_ms`, and schedule the next one."""
        self._last_ms = now_ms
        self.due_ms = now_ms + (self._wait_interval_ms if balanced else self._min_interval_ms)


class GroupTaken(ValueError):
    """A client's consumers include the same group twice."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The client's intervals in milliseconds. The defaults are RocketMQ's."""

    rebalance_ms: int = DEFAULT_WAIT_INTERVAL_MS
    rebalance_min_ms: int = DEFAULT_MIN_INTERVAL_MS
    heartbeat_ms: int = 30_000
    lock_ms: int = 20_000
    lock_first_ms: int = 1_000
    persist_ms: int = 5_000
    persist_first_ms: int = 10_000


class ClientInstance:
    """A client with its groups. The caller calls `start`, and then `tick` whenever `due_ms` has come.

    All times are in milliseconds of one clock of the caller. Raises GroupTaken if two consumers have one
    group.
    """

    def __init__(
        self,
        client_id: str,
        consumers: Iterable[ConsumerConfig],
        broker: Broker,
        now_ms: int,
        intervals: Intervals | None = None,
    ) -> None:
        self.client_id = client_id
        self.groups: dict[str, GroupRebalance] = {}
        for config in consumers:
            if config.group_id in self.groups:
                raise GroupTaken(f"the consumer group[{config.group_id}] has been created before")
            self.groups[config.group_id] = GroupRebalance(config, client_id, broker, now_ms)
        self._broker = broker
        self._intervals = intervals or Intervals()
        self._schedule = Schedule(now_ms, self._intervals.rebalance_ms, self._intervals.rebalance_min_ms)
        self._heartbeat_due_ms = now_ms
        self._lock_due_ms = now_ms + self._intervals.lock_first_ms
        self._persist_due_ms = now_ms + self._intervals.persist_first_ms

    @property
    def due_ms(self) -> int:
        """The time of the next due work."""
        return min(self._schedule.due_ms, self._heartbeat_due_ms, self._lock_due_ms, self._persist_due_ms)

    def start(self, now_ms: int) -> None:
        """Send a heartbeat on a new connection, by which brokers know a client, and then rebalance."""
        if self._heartbeat(now_ms):
            self._schedule.wake(now_ms)

    def notified(self, now_ms: int) -> None:
        """Rebalance all groups after a NOTIFY_CONSUMER_IDS_CHANGED for any group."""
        self._schedule.wake(now_ms)

    def tick(self, now_ms: int) -> None:
        """Do all work that is due at `now_ms`."""
        if now_ms >= self._heartbeat_due_ms:
            self._heartbeat(now_ms)
        if now_ms >= self._lock_due_ms:
            self._lock_due_ms = now_ms + self._intervals.lock_ms
            for group in self.groups.values():
                group.lock_all(now_ms)
        if now_ms >= self._schedule.due_ms:
            self._rebalance(now_ms)
        if now_ms >= self._persist_due_ms:
            self._persist_due_ms = now_ms + self._intervals.persist_ms
            for group in self.groups.values():
                group.persist_all()

    def shut_down(self) -> None:
        """Store offsets, release locks, and unregister all groups."""
        for group_id, group in self.groups.items():
            group.shut_down()
            self._broker.unregister(group_id)

    def _rebalance(self, now_ms: int) -> None:
        """Rebalance all groups. A group that fails does not stop the others."""
        balanced = True
        for group_id, group in self.groups.items():
            try:
                balanced &= group.do_rebalance(now_ms)
            except Exception:
                log.exception("rebalancing failed", group=group_id)
                balanced = False
        self._schedule.ran(now_ms, balanced=balanced)
        for group in self.groups.values():
            if group.again_at_ms is not None:
                self._schedule.wake(group.again_at_ms)
        if any(group.heartbeat_is_due for group in self.groups.values()):
            self._heartbeat(now_ms)

    def _heartbeat(self, now_ms: int) -> bool:
        self._heartbeat_due_ms = now_ms + self._intervals.heartbeat_ms
        for group in self.groups.values():
            group.heartbeat_is_due = False
        consumers = tuple(_consumer_data(group) for group in self.groups.values())
        return self._broker.heartbeat(
            HeartbeatData(client_id=self.client_id, consumer_data_set=consumers, language="PYTHON")
        )


def _consumer_data(group: GroupRebalance) -> ConsumerData:
    config = group.config
    subscriptions = tuple(
        SubscriptionData(topic, sub_string, group.subscription_version_ms)
        for topic, sub_string in config.subscriptions.items()
    )
    return ConsumerData(
        group_name=config.group_id,
        message_model=config.message_model,
        consume_from_where=config.consume_from_where,
        subscription_data_set=subscriptions,
    )
