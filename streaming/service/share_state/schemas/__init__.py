"""Kafka's definitions (`common/message` in the jar of kafka-clients 4.4.0) of the messages to a share
coordinator.
"""
