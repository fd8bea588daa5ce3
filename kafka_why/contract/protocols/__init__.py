"""Subscriptions and assignments, in the bytes of Kafka's consumer, Connect and Streams."""
