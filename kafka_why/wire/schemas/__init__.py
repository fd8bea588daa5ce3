"""Definitions of Kafka 4.4 (clients/src/main/resources/common/message) that kafka-python lacks."""
