"""The fault campaign: many groups load a coordinator, faults come from a seed, a judge reads the topics.

`python -m tests.faults.campaign --seed 7 --faults 300`. docs/faults.md has what it shows.
"""
