"""The service around the query: its topics, its time, its status, and starting it again."""
