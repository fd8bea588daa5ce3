"""`python -m tests.conformance.rocketmq.check_allocation FILE...`: compare the strategies
with allocation vectors.
"""

import sys

from tests.conformance.rocketmq.check_files import run
from tests.conformance.rocketmq.vectors import decode, failure

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], decode, failure))
