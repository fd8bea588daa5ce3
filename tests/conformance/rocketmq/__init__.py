"""Compares the strategies and the broker's side with recorded calls of RocketMQ itself."""
