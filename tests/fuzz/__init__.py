"""Differential fuzzing of the gateway's reader of requests against Kafka's own. See docs/security.md."""
