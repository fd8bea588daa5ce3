"""The service around the query: its start, its topics and its status. Each subpackage has one subject."""
