"""Kafka's wire protocol in front of the coordinator, for clients that know nothing of it."""
