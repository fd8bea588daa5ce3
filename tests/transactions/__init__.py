"""Applications that commit their offsets in transactions, killed at random; and a checker of what they wrote.

`python -m tests.transactions --client librdkafka --seed 7 --faults 200`. docs/transactions.md has results.
"""
