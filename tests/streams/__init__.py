"""A word count with Kafka Streams by the streams protocol (KIP-1071), while what it needs breaks.

`python -m tests.streams --seed 7 --faults 100`. docs/streams-faults.md has results.
"""
