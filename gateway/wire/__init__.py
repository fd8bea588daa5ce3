"""Kafka's wire protocol as bytes: frames, messages, and partial reading without decoding."""
