"""A client: its consumer groups under one client id and one connection, and the times at which it acts.

Source: MQClientInstance.java, DefaultMQPushConsumerImpl.java, ConsumeMessageOrderlyService.java.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from clients.rocketmq.api import Broker, ConsumerConfig
from clients.rocketmq.rebalance import Rebalance
from kafka_why.contract.rocketmq.requests import SubscriptionData
from state.rocketmq.split import ConsumerData, HeartbeatData

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


log = structlog.get_logger()


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
    """One client. The caller calls `start`, and then `tick` whenever `due_ms` has come.

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
        self.groups: dict[str, Rebalance] = {}
        for config in consumers:
            if config.group_id in self.groups:
                raise GroupTaken(f"the consumer group[{config.group_id}] has been created before")
            self.groups[config.group_id] = Rebalance(config, client_id, broker, now_ms)
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
        """Send the first heartbeat, then rebalance, because the broker has to know the client's id first."""
        if self._heartbeat(now_ms):
            self._schedule.wake(now_ms)

    def notified(self, now_ms: int) -> None:
        """Rebalance all groups after a NOTIFY_CONSUMER_IDS_CHANGED for any group."""
        self._schedule.wake(now_ms)

    def reconnected(self, now_ms: int) -> None:
        """Register again after a reconnect, because the broker knows clients by their connection."""
        self.start(now_ms)

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


def _consumer_data(group: Rebalance) -> ConsumerData:
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
