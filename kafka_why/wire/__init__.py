"""Kafka's binary messages, decoded by Kafka's own schemas: clients' requests, and records of the brokers."""
