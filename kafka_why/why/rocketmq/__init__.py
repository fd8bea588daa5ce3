"""Explains why a RocketMQ group rebalanced, from the changes of its clients and from its notifications."""
