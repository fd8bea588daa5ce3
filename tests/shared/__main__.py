"""`python -m tests.shared --seed 7 --faults 100`."""

from tests.shared.running import main

main()
