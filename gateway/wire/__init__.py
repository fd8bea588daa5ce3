"""Kafka's wire protocol as bytes: frames, messages, and what may be read without decoding. No IO."""
