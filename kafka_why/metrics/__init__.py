"""Metrics and Kafka's log sentences for operators; made by a separate reader, not in the query."""
