"""Records about Kafka's groups."""
