"""Recorded calls of RocketMQ itself, held against the strategies and the broker's side here."""
