"""Split of a client's heartbeat for all its groups into one record for each group.

Each group has its own state under its own key, so a message with several groups cannot reach them. Each group
keeps its own time of the last heartbeat. In RocketMQ the groups of one heartbeat share that time: a group
that later heartbeats of the connection omit lives on there, and expires here.

Source: ClientManageProcessor.java, HeartbeatData.java.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from gateway.rocketmq.backend import RequestFields
from kafka_why.contract.rocketmq.requests import RegisterConsumer, RegisterProducer, SubscriptionGroupConfig
from kafka_why.remoting.bodies import HeartbeatData
from kafka_why.remoting.frames import Header

CLIENT_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
"""The producer group of every Java client. It gets no records: one key would have all heartbeats of all
clients, and nothing looks for it there.
"""


class ConnectionFields(TypedDict):
    """The fields of a heartbeat that say where its connection is."""

    client_address: str
    gateway: str
    gateway_start: str


def split_heartbeat(
    heartbeat: HeartbeatData,
    request: Header,
    about: Callable[[str, str], RequestFields],
    gateway: ConnectionFields,
    group_configs: Mapping[str, SubscriptionGroupConfig | None],
) -> list[RegisterConsumer | RegisterProducer]:
    """Return one request for each group, consumers first. `about` makes the fields of a group id and client
    id.
    """
    common: dict[str, Any] = {
        "heartbeat_fingerprint": heartbeat.heartbeat_fingerprint,
        "language": request.language,
        "client_version": request.version,
        **gateway,
    }
    consumers = [
        RegisterConsumer(
            **about(data.group_name, heartbeat.client_id),
            **common,
            message_model=data.message_model,
            consume_type=data.consume_type,
            consume_from_where=data.consume_from_where,
            subscription_data_set=data.subscription_data_set,
            is_without_sub=heartbeat.is_without_sub,
            group_config=group_configs[data.group_name],
        )
        for data in heartbeat.consumer_data_set
    ]
    producers = [
        RegisterProducer(**about(group_id, heartbeat.client_id), **common)
        for group_id in heartbeat.producer_groups
        if group_id != CLIENT_INNER_PRODUCER
    ]
    return [*consumers, *producers]
