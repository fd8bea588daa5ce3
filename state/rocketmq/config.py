"""The broker's settings that the core reads. Source: BrokerConfig.java, under its names in snake_case."""

from dataclasses import dataclass

from state.rocketmq.messages import MessageRequestMode

# Producers have no setting of their own for this. Source: ProducerManager.CHANNEL_EXPIRED_TIMEOUT.
PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Defaults are RocketMQ's; times in milliseconds.

    `scan_interval_ms` is how often silent connections are looked for (ClientHousekeepingService),
    `lock_max_live_ms` how long a queue's lock lives (rocketmq.broker.rebalance.lockMaxLiveTime).
    """

    broker_name: str = "broker"
    channel_expired_timeout_ms: int = 120_000
    scan_interval_ms: int = 10_000
    lock_max_live_ms: int = 60_000
    notify_consumer_ids_changed_enable: bool = True
    enable_fast_channel_event_process: bool = False
    reject_pull_consumer_enable: bool = False
    server_load_balancer_enable: bool = True
    default_message_request_mode: MessageRequestMode = MessageRequestMode.PULL
    default_pop_share_queue_num: int = -1
