"""Differential fuzzing of the gateways' readers against Kafka's and RocketMQ's. See docs/threat-model.md."""
