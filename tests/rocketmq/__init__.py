"""RocketMQ's own clients continue and lose nothing while the servers they need fail."""
