"""Records of groups of either type."""

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import AnyRequest as KafkaRequest
from kafka_why.contract.kafka.snapshot import ConfigsView, GroupSnapshot
from kafka_why.contract.kafka.snapshot import GroupSnapshot as KafkaView
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.contract.rocketmq.requests import AnyRequest as RocketMqRequest
from kafka_why.contract.rocketmq.snapshot import GroupSnapshot as RocketMqSnapshot
from kafka_why.contract.rocketmq.snapshot import GroupSnapshot as RocketMqView

AnyRequest = KafkaRequest | RocketMqRequest


StoredView = KafkaView | ConfigsView | RocketMqView
"""A record of the groups topic: a group, or the settings of a group id that has no group."""


AnyView = GroupSnapshot | RocketMqSnapshot


AnyHistoryEntry = HistoryEntry | RocketMqHistoryEntry
