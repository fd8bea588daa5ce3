"""Whether a standalone Spark master answers, and waiting until one does."""

import socket
import threading
import time

import structlog

from streaming.query.jvm import SparkFailed
from streaming.query.spark_settings import hosts_of

MASTER_WAIT_S = 120.0
"""A driver waits so long, because a cluster starts its master and its driver at once."""

_CONNECT_TIMEOUT_S = 5.0
_PAUSE_S = 1.0

log = structlog.get_logger()


def check_master(master: str | None) -> None:
    """Raise SparkFailed if no standalone master answers. Spark itself would try for a minute."""
    if (silent := _why_silent(master)) is not None:
        raise SparkFailed(silent)


def wait_for_master(master: str | None, given_up: threading.Event, timeout_s: float = MASTER_WAIT_S) -> None:
    """Wait until a standalone master answers. Raises SparkFailed after this time, or if it is given up."""
    until_s = time.monotonic() + timeout_s
    told = False
    while (silent := _why_silent(master)) is not None:
        if not told:
            log.warning("waiting for the Spark master", reason=silent, timeout_s=timeout_s)
            told = True
        if time.monotonic() >= until_s or given_up.wait(_PAUSE_S):
            raise SparkFailed(silent)


def _why_silent(master: str | None) -> str | None:
    """Returns None if a master answers, or if it is not a standalone one."""
    if master is None or not master.startswith("spark://"):
        return None
    reasons = []
    for host, port in hosts_of(master):
        try:
            socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return None
    return f"no Spark master answers ({'; '.join(reasons) or master})"
