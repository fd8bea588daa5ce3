"""`python -m tests.conformance.rocketmq.check_broker FILE...`: compare the core with broker traces."""

import sys

from tests.conformance.rocketmq.check_files import run
from tests.conformance.rocketmq.trace_player import failure
from tests.conformance.rocketmq.traces import decode

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], decode, failure))
