"""Consume, transform, produce: the loop of an exactly-once application, written out for two libraries."""
