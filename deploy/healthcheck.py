"""Ends with 0 if the coordinator whose metrics are at the given address commits batches or stands by, and its
gateway, if it has one, takes connections, else with 1: `healthcheck.py URL [HOST:PORT]`.
"""

import socket
import sys
import urllib.request

HEALTHY = {b'group_coordinator_phase{phase="ready"} 1.0', b'group_coordinator_phase{phase="standby"} 1.0'}
TIMEOUT_S = 2.0


def main(url: str, gateway: str | None = None) -> int:
    """The exit code for the metrics at `url` and the `gateway` at HOST:PORT, None if there is none.

    An address that does not answer raises OSError: 1, too.
    """
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 - the container's own address
        if HEALTHY.isdisjoint(response.read().splitlines()):
            return 1
    if gateway is not None:
        host, _, port = gateway.rpartition(":")
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
