"""`python -m tests.transactions --client librdkafka --seed 7 --faults 200`."""

from tests.transactions.running import main

main()
