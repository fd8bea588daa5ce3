"""Groups as kafka-consumer-groups lists and describes them.

Pure modules: `selection` and `time_formats` parse user input, `describe` makes rows of a group's snapshot,
`render` and `tables` format them. Modules with IO: `list_groups` and `committed` read the topics,
`log_offsets` queries the brokers.
"""
