"""Codecs for the subscriptions and assignments of Kafka's consumer, Connect and Streams."""
