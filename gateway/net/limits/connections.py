"""Limits on connections: admission of new ones, and the number of files that the process may open."""

import resource
from collections import Counter
from dataclasses import dataclass

import structlog

from gateway.limits import Limits
from gateway.metrics.counts import TOO_MANY, TOO_MANY_OF_IP, TOO_OFTEN_OF_IP
from gateway.quotas import Quotas


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """The decision about a new connection. `refused` is the limit that it exceeds, or None if it is accepted.
    The gateway closes a refused connection, or begins to serve an accepted one, after `wait_s`.
    """

    refused: str | None = None
    wait_s: float = 0.0


_ACCEPTED = AdmissionDecision()


class ConnectionAdmission:
    """Admission of connections, which are counted by the client's IP address."""

    def __init__(self, limits: Limits, quotas: Quotas) -> None:
        self._limits = limits
        self._quotas = quotas
        self._by_ip: Counter[str] = Counter()
        self._open = 0

    def admit(self, address: str) -> AdmissionDecision:
        """Decide about a new connection, and count it until `release` is called, even if it is refused."""
        self._open += 1
        self._by_ip[address] += 1
        limits = self._limits
        if self._open > limits.connections:
            return AdmissionDecision(TOO_MANY)
        if self._by_ip[address] > limits.connections_per_ip_overrides.get(address, limits.connections_per_ip):
            return AdmissionDecision(TOO_MANY_OF_IP)
        now_s = self._quotas.now_s()
        bucket = self._quotas.connections_of(address)
        if bucket is not None and not bucket.try_charge(now_s):
            # Closed late, as a broker does, because a client that reconnects at once costs more.
            return AdmissionDecision(TOO_OFTEN_OF_IP, bucket.wait_s(now_s))
        every = self._quotas.all_connections
        if every is not None and every.charge_exceeds(now_s):
            return AdmissionDecision(wait_s=every.throttle_s(now_s))
        return _ACCEPTED

    def release(self, address: str) -> None:
        """Stop counting a connection that has ended."""
        self._open -= 1
        self._by_ip[address] -= 1
        if not self._by_ip[address]:
            del self._by_ip[address]


# The limit on open files of the process. Shells and service managers often allow 1,024, and each client needs
# a connection to the gateway and one to its broker.


# Listeners, the gateway's own connections, and other files of the process.
_OWN_FILES = 500

log = structlog.get_logger()


def files_for(limits: Limits) -> int:
    """Return the number of open files that the maximum number of clients needs."""
    return 2 * limits.connections + _OWN_FILES


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit to `wanted`. If the hard limit is lower, raise it to that and log a warning."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        log.info("the limit of open files was raised", before=soft, now=granted)
    if granted < wanted:
        log.warning(
            "too few open files for the maximum number of clients: ulimit -Hn", limit=hard, wanted=wanted
        )
