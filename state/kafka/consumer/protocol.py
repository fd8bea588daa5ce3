"""The consumer protocol (KIP-848) as an object."""

from collections.abc import Mapping
from typing import ClassVar

from kafka_why.contract.kafka.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    RegexResolved,
    SyncGroup,
    TopicMetadata,
)
from state.kafka.consumer import classic_members, commits, expiry, takeover
from state.kafka.consumer.classic_join import join
from state.kafka.consumer.describe import describe
from state.kafka.consumer.heartbeat import heartbeat, heartbeat_no_consumer_group
from state.kafka.consumer.no_consumer_group import (
    describe_no_group,
    refusal_of_describe,
    refusal_of_heartbeat,
)
from state.kafka.consumer.progress import note_state, progress_of
from state.kafka.consumer.regex_resolved import regex_resolved
from state.kafka.consumer.settings import SETTINGS
from state.kafka.consumer.timers import armed, armed_of
from state.kafka.consumer.topics import topic_metadata
from state.kafka.consumer.view import view_of
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocol import KafkaProtocol, Learners
from state.protocol import Handlers, WhyRefused


class Consumer(KafkaProtocol[ConsumerGroup]):
    """The consumer protocol. See `KafkaProtocol`. No request is parked: each is answered at once."""

    group_class = ConsumerGroup
    handlers: ClassVar[Handlers] = {
        ConsumerGroupHeartbeat: heartbeat,
        ConsumerGroupDescribe: describe,
        JoinGroup: join,
        SyncGroup: classic_members.sync,
        Heartbeat: classic_members.heartbeat,
        LeaveGroup: classic_members.leave,
    }
    without_own_group: ClassVar[Handlers] = {
        ConsumerGroupHeartbeat: heartbeat_no_consumer_group,
        ConsumerGroupDescribe: describe_no_group,
    }
    facts: ClassVar[Learners] = {TopicMetadata: topic_metadata, RegexResolved: regex_resolved}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ConsumerGroupHeartbeat: refusal_of_heartbeat,
        ConsumerGroupDescribe: refusal_of_describe,
    }
    settings = SETTINGS.settings
    checks_group_id = (ConsumerGroupHeartbeat,)  # row HB6

    timers = staticmethod(armed)
    timers_of = staticmethod(armed_of)
    deadline_reached = staticmethod(expiry.deadline_reached)
    take_over = staticmethod(takeover.take_over)
    shift_deadlines = staticmethod(takeover.shift_deadlines)
    release = staticmethod(takeover.release)

    before = staticmethod(progress_of)
    settle = staticmethod(note_state)
    conflict_of = staticmethod(SETTINGS.conflict_of)
    check_commit = staticmethod(commits.check_commit)
    check_txn_commit = staticmethod(commits.check_txn_commit)
    check_fetch = staticmethod(commits.check_fetch)
    view = staticmethod(view_of)


CONSUMER = Consumer()
