"""Groups as kafka-consumer-groups lists and describes them.

Pure modules: `selection` parses user input, `describe` makes rows of a group's snapshot, `render` and
`tables` format them. Modules with IO: `list_groups` reads the topics, `gather` also queries the brokers.
"""
