"""Definitions of Kafka 4.3 (clients/src/main/resources/common/message) that kafka-python lacks."""
