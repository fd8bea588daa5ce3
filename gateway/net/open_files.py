"""How many files the process may have open: shells and service managers often grant 1,024, and each client
is a connection here and one to its broker.
"""

import resource

import structlog

from gateway.wire.limits import Limits

# Listeners, the gateway's own connections, and what else the process does.
_OWN_FILES = 500

log = structlog.get_logger()


def files_for(limits: Limits) -> int:
    """How many open files it takes to serve all the clients there may be."""
    return 2 * limits.connections + _OWN_FILES


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit as far as it is needed and may be; a log line says where it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
        log.info("the limit of open files was raised", before=soft, now=granted)
    if granted < wanted:
        log.warning("too few open files for all clients there may be: ulimit -Hn", limit=hard, wanted=wanted)
