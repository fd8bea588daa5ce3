"""What both loops are started with."""

import argparse
import faulthandler
import sys
from dataclasses import dataclass

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 1_000
MAX_POLL_INTERVAL_MS = 60_000
"""A process that hangs in a call keeps its session, and holds up its group for so long."""
_HANG_S = 100.0
"""More than the timeouts of all calls of one turn."""
POLL_TIMEOUT_S = 0.5
FATAL = 3
"""The exit code after an error which the library calls fatal. An application is started again then."""
ABORTED = 0.1
"""The share of the transactions that a loop aborts by itself."""


@dataclass(frozen=True)
class Options:
    """`records` is the largest number of records of a transaction."""

    servers: str
    group: str
    input_topic: str
    output_topic: str
    transactional_id: str
    records: int
    timeout_ms: int

    @classmethod
    def parse(cls) -> "Options":
        """Return the options of the command line."""
        parser = argparse.ArgumentParser()
        for name in ("servers", "group", "input-topic", "output-topic", "transactional-id"):
            parser.add_argument(f"--{name}", required=True)
        for name in ("records", "timeout-ms"):
            parser.add_argument(f"--{name}", required=True, type=int)
        return cls(**vars(parser.parse_args()))


def say(line: str) -> None:
    """Write a line to the log."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def end_if_it_hangs() -> None:
    """End the process, with the stacks of its threads in the log, unless this is called again in time.

    Each loop calls it once a turn: a call of a library may last for ever in spite of its timeout.
    """
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
