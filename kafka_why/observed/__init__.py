"""Groups of the cluster's own coordinator, as its records in `__consumer_offsets` show them.

A row such as OB1 is a case in docs/observe.md.
"""
