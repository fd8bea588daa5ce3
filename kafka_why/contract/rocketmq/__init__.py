"""Records about RocketMQ's groups."""
