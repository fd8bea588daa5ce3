"""Split of a client's heartbeat for all its groups into one message for each group.

Each group has its own state under its own key, so a message with several groups cannot reach them. Each group
keeps its own time of the last heartbeat. In RocketMQ the groups of one heartbeat share that time: a group
that later heartbeats of the connection omit lives on there, and expires here.

Source: ClientManageProcessor.java, HeartbeatData.java.
"""

from collections.abc import Mapping

from msgspec import Struct

from kafka_why.contract.messages import Int32
from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    Name,
    RegisterConsumer,
    RegisterProducer,
    SubscriptionData,
    SubscriptionGroupConfig,
)


class ConsumerData(Struct, frozen=True, kw_only=True):
    """One consumer group of a heartbeat."""

    group_name: Name
    message_model: MessageModel
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()


class HeartbeatData(Struct, frozen=True, kw_only=True):
    """HEART_BEAT as a client sends it: every consumer and producer group of its process."""

    client_id: Name
    consumer_data_set: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[Name, ...] = ()
    heartbeat_fingerprint: Int32 = 0
    is_without_sub: bool = False
    language: str = "JAVA"
    client_version: Int32 = 0


class Origin(Struct, frozen=True):
    """The connection of a client's request, and the address of its answers. The last four fields are those of
    `RegisterConsumer`.
    """

    connection: Name
    correlation_id: Name
    reply_partition: Int32
    broker: Name = ""
    client_address: Name = ""
    gateway: Name = ""
    gateway_start: Name = ""


def split_heartbeat(
    heartbeat: HeartbeatData, origin: Origin, group_configs: Mapping[str, SubscriptionGroupConfig]
) -> list[RegisterConsumer | RegisterProducer]:
    """Return one message for each group, consumers first. A group that is missing in `group_configs` is
    unknown to the broker.
    """
    consumers = [
        RegisterConsumer(
            group_id=data.group_name,
            connection=origin.connection,
            client_id=heartbeat.client_id,
            correlation_id=origin.correlation_id,
            reply_partition=origin.reply_partition,
            broker=origin.broker,
            message_model=data.message_model,
            consume_type=data.consume_type,
            consume_from_where=data.consume_from_where,
            subscription_data_set=data.subscription_data_set,
            heartbeat_fingerprint=heartbeat.heartbeat_fingerprint,
            is_without_sub=heartbeat.is_without_sub,
            language=heartbeat.language,
            client_version=heartbeat.client_version,
            client_address=origin.client_address,
            gateway=origin.gateway,
            gateway_start=origin.gateway_start,
            group_config=group_configs.get(data.group_name),
        )
        for data in heartbeat.consumer_data_set
    ]
    producers = [
        RegisterProducer(
            group_id=group_name,
            connection=origin.connection,
            client_id=heartbeat.client_id,
            correlation_id=origin.correlation_id,
            reply_partition=origin.reply_partition,
            broker=origin.broker,
            heartbeat_fingerprint=heartbeat.heartbeat_fingerprint,
            language=heartbeat.language,
            client_version=heartbeat.client_version,
            client_address=origin.client_address,
            gateway=origin.gateway,
            gateway_start=origin.gateway_start,
        )
        for group_name in heartbeat.producer_groups
    ]
    return [*consumers, *producers]
