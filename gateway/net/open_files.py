"""How many files the process may open. Shells and service managers often allow 1,024, and each client needs a
connection to the gateway and one to its broker.
"""

import resource

import structlog

from gateway.limits import Limits

# Listeners, the gateway's own connections, and other files of the process.
_OWN_FILES = 500

log = structlog.get_logger()


def files_for(limits: Limits) -> int:
    """The number of open files that the maximum number of clients needs."""
    return 2 * limits.connections + _OWN_FILES


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit to `wanted`, at most to the hard limit. A log line warns if that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        log.info("the limit of open files was raised", before=soft, now=granted)
    if granted < wanted:
        log.warning(
            "too few open files for the maximum number of clients: ulimit -Hn", limit=hard, wanted=wanted
        )
