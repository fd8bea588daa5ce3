"""Ends with 0 if the given address answers 200, as /readyz does, else with 1: `healthcheck.py URL`."""

import http.client
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main(url: str) -> int:
    """Return the exit code for the address. The reason why it is not 0 goes to stderr."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 - the container's own address
            return 0 if response.status == 200 else 1
    except urllib.error.HTTPError as refused:
        sys.stderr.write(refused.read().decode())
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write(f"{url} does not answer: {getattr(error, 'reason', error)}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
