"""The service around the query: topics, clock records, status, and restarts of the query."""
