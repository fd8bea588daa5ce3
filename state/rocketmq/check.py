"""`python -m state.rocketmq.check FILE...`: hold broker traces against the core."""

import sys

from assignors.rocketmq.check_files import run
from state.rocketmq.trace_run import failure
from state.rocketmq.traces import decode

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], decode, failure))
