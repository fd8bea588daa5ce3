"""Explains groups of Kafka consumers: why they rebalanced, how far they are behind, what is wrong."""

__version__ = "0.1.0"
