"""Administration of groups, as with kafka-consumer-groups: list, describe, reset, delete, remove members.

Pure modules: `selection`, `time_formats` and `plan_file` parse user input, `reset` plans resets, `describe`
makes rows, `render` and `tables` format them. Modules with IO: `requests` queries the coordinator,
`list_groups` the groups topic, `log_offsets` the broker. `gather` and `prepare` combine both kinds.
"""
