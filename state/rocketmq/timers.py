"""The group's only timer: the scan for what has been silent for too long.

RocketMQ scans every 10 s. Here too, at the multiples of that interval, but only at those that can find
something; the others would do nothing.
"""

from msgspec import Struct

from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig
from state.rocketmq.group import Group


class ScanDue(Struct, frozen=True):
    """An event of the core: a scan whose time has come."""

    deadline_ms: int

    def __str__(self) -> str:
        return f"scan at {self.deadline_ms}"


def scan_after(expiry_ms: int, config: BrokerConfig) -> int:
    """The first scan that finds what expires at `expiry_ms`: what is exactly that old is not yet expired."""
    return (expiry_ms // config.scan_interval_ms + 1) * config.scan_interval_ms


def next_scan(group: Group, config: BrokerConfig) -> ScanDue | None:
    """The first scan that would find something if nobody is heard of again; None where nothing can expire,
    or does not because the group is quarantined.
    """
    if group.quarantined is not None:
        return None
    expiries_ms = [
        *(info.last_update_ms + config.channel_expired_timeout_ms for info in group.channels.values()),
        *(info.last_update_ms + PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS for info in group.producers.values()),
        *(lock.last_update_ms + config.lock_max_live_ms for lock in group.locks.values()),
    ]
    return ScanDue(scan_after(min(expiries_ms), config)) if expiries_ms else None
