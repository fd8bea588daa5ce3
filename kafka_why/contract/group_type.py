"""Whose group it is: Kafka's or RocketMQ's."""

from enum import StrEnum


class GroupType(StrEnum):
    """Whose group it is. Groups of one type share a step, and may be converted into each other."""

    KAFKA = "Kafka"
    ROCKETMQ = "RocketMQ"
