"""Administration of groups, as with kafka-consumer-groups: list, describe, reset, delete, remove members.

What is decided or laid out is pure: `selection`, `when` and `plan_file` read what users write, `reset` plans,
`describe` makes rows, `render` and `tables` show them. Those who ask stand apart: `requests` the coordinator,
`directory` the groups topic, `log_offsets` the broker. `gather` and `prepare` bring both together.
"""
