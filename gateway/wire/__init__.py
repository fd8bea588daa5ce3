"""Kafka's wire protocol as bytes: frames, messages, and what can be read without decoding. No IO."""
