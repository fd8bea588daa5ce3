"""One consumer group in one client: the queues that the client takes, keeps and gives up.

Every client of a group computes its own share. While the clients' views differ, two clients may have one
queue, or no client may have it. Source: RebalanceImpl.java, RebalancePushImpl.java.
"""

from collections.abc import Set
from dataclasses import dataclass

import structlog

from assignors.rocketmq.api import (
    IllegalArgumentException,
    NullPointerException,
    sort_client_ids,
    sort_queues,
)
from clients.rocketmq.api import RETRY_GROUP_TOPIC_PREFIX, Broker, ConsumerConfig
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import MessageModel

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


class Rebalance:
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
        """Whether messages of the queue may be processed now."""
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
