"""The classic protocol as an object."""

from typing import ClassVar

from kafka_why.contract.kafka.requests import (
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OversizedRequest,
    SyncGroup,
    TopicMetadata,
)
from state.kafka.classic import commits, expiry, takeover
from state.kafka.classic.describe import describe
from state.kafka.classic.heartbeat import heartbeat
from state.kafka.classic.join import join
from state.kafka.classic.leave import leave
from state.kafka.classic.oversized import oversized
from state.kafka.classic.reported_topics import topic_metadata
from state.kafka.classic.sync import sync
from state.kafka.classic.timers import armed, armed_of
from state.kafka.classic.view import view_of
from state.kafka.classic_group import ClassicGroup
from state.kafka.protocol import KafkaProtocol, Learners
from state.protocol import Handlers


class Classic(KafkaProtocol[ClassicGroup]):
    """The classic protocol. See `KafkaProtocol`."""

    group_class = ClassicGroup
    handlers: ClassVar[Handlers] = {
        JoinGroup: join,
        SyncGroup: sync,
        OversizedRequest: oversized,
        Heartbeat: heartbeat,
        LeaveGroup: leave,
        DescribeGroup: describe,
    }
    facts: ClassVar[Learners] = {TopicMetadata: topic_metadata}
    breaks_ties_by_member = False

    timers = staticmethod(armed)
    timers_of = staticmethod(armed_of)
    deadline_reached = staticmethod(expiry.deadline_reached)
    take_over = staticmethod(takeover.take_over)
    shift_deadlines = staticmethod(takeover.shift_deadlines)
    answer_parked = staticmethod(takeover.answer_parked)
    release = staticmethod(takeover.release)
    check_commit = staticmethod(commits.check_commit)
    check_txn_commit = staticmethod(commits.check_txn_commit)
    view = staticmethod(view_of)


CLASSIC = Classic()
