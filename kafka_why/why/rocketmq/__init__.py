"""Explains why a RocketMQ group rebalanced: its history as changes of its clients, and the broker's
notifications.
"""
