"""`python -m state.rocketmq.check FILE...`: hold broker traces against the core."""

import sys

from state.rocketmq.trace_run import failure
from state.rocketmq.traces import decode
from tests.conformance.rocketmq.check_files import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], decode, failure))
