"""Groups as kafka-consumer-groups lists and describes them.

`describe` builds rows from a group's snapshot, and `render` formats them. `list_groups` reads the topics, and
`gather` also queries the brokers.
"""
