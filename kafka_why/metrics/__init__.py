"""Metrics and Kafka's log sentences for operators. They come from a separate reader, not from the query."""
