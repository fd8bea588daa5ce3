"""Explains why a RocketMQ group rebalanced: by the changes of its clients, and the broker's notifications."""
