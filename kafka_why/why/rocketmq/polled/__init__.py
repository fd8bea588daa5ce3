"""Explains a RocketMQ group at once, from polls of its cluster, without a coordinator of this project."""
