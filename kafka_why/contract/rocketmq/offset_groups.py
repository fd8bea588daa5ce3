"""The Kafka groups that have the offsets of RocketMQ's groups."""

OFFSET_GROUP_PREFIX = "%OFFSET%"
