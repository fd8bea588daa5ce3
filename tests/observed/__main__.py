"""`python -m tests.observed --coordinator "Kafka 4.4" --seed 7`."""

from tests.observed.running import main

main()
