"""Kafka's binary messages, read by Kafka's own schemas: what clients send, and records of the brokers."""
