"""`python -m tests.faults.campaign --seed 7 --faults 300`."""

from tests.faults.campaign.running import main

main()
