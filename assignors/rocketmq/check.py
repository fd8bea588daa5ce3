"""`python -m assignors.rocketmq.check FILE...`: hold allocation vectors against the strategies."""

import sys

from assignors.rocketmq.check_files import run
from assignors.rocketmq.vectors import decode, failure

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], decode, failure))
