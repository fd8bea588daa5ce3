"""The frame of all campaigns: stages, faults, the order of a seed, results, tables, command lines.

A campaign adds its load, its kinds of faults and its judge: `tests.faults.campaign`, `tests.shared`,
`tests.streams`, `tests.rocketmq`, `tests.transactions` and `tests.observed`.
"""
