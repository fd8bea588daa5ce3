"""`python -m tests.streams --seed 7 --faults 100`."""

from tests.streams.running import main

main()
