"""`python -m tests.rocketmq --seed 7 --faults 30`."""

from tests.rocketmq.running import main

main()
