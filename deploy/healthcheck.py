"""Ends with 0 if the coordinator whose metrics are at the given address commits batches, else with 1."""

import sys
import urllib.request

READY = b'group_coordinator_phase{phase="ready"} 1.0'


def main(url: str) -> int:
    """The exit code for the metrics at `url`. An address that does not answer raises OSError: 1, too."""
    with urllib.request.urlopen(url, timeout=4) as response:  # noqa: S310 - the address is the container's own
        return 0 if READY in response.read().splitlines() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
