"""The only timer of a RocketMQ group: the scan for silent connections and expired locks.

RocketMQ scans every 10 s. Here, too, a scan is at a multiple of the interval, but it runs only if it can find
an expired entry.
"""

from msgspec import Struct

from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig
from state.rocketmq.group import Group


class ScanDue(Struct, frozen=True):
    """An event of the core: a scan is due at `deadline_ms`."""

    deadline_ms: int

    def __str__(self) -> str:
        return f"scan at {self.deadline_ms}"


def scan_after(expiry_ms: int, config: BrokerConfig) -> int:
    """Return the time of the first scan at which an entry with `expiry_ms` is expired. At exactly `expiry_ms`
    it is not yet expired.
    """
    return (expiry_ms // config.scan_interval_ms + 1) * config.scan_interval_ms


def next_scan(group: Group, config: BrokerConfig) -> ScanDue | None:
    """Return the first scan that finds an expired entry if no client renews. None if no entry can expire, or
    if the group is quarantined.
    """
    if group.quarantined is not None:
        return None
    expiries_ms = [
        min(last_updates_ms) + lifetime_ms
        for last_updates_ms, lifetime_ms in (
            ([info.last_update_ms for info in group.channels.values()], config.channel_expired_timeout_ms),
            ([info.last_update_ms for info in group.producers.values()], PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS),
            ([lock.last_update_ms for lock in group.locks.values()], config.lock_max_live_ms),
        )
        if last_updates_ms
    ]
    return ScanDue(scan_after(min(expiries_ms), config)) if expiries_ms else None
