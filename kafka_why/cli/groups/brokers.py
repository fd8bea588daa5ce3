"""Descriptions of groups from the brokers' own `__consumer_offsets`."""

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.committed import Committed, GroupOffsets
from kafka_why.groups.describing import Answers, Describing, KnownTypes, dead
from kafka_why.observed.view import view_of
from kafka_why.topic_ids import names_on
from kafka_why.why.offsets_topic import OffsetsTopic


class BrokersGroups(Describing):
    """Describes groups of the cluster's own coordinator from its `__consumer_offsets`, where nothing was set
    up before.
    """

    def __init__(self, client_config: ClientConfig) -> None:
        self._client_config = client_config

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the groups. Raises HistoryUnavailable, KafkaError."""
        with OffsetsTopic(self._client_config) as topic:
            found = {group_id: topic.group(group_id) for group_id in groups}
        names = names_on(self._client_config).known
        answers: Answers = {
            group_id: dead(group_id) if group is None else view_of(group, names)
            for group_id, group in found.items()
        }
        return answers, {
            group_id: GroupOffsets(
                {
                    TopicPartition(topic, number): Committed(offset.offset, offset.leader_epoch)
                    for topic, partitions in ({} if group is None else group.offsets).items()
                    for number, offset in partitions.items()
                }
            )
            for group_id, group in found.items()
        }
