"""Kafka's wire protocol in front of the coordinator, for unmodified Kafka clients."""
