"""The protocol of share groups (KIP-932) as an object."""

from collections.abc import Mapping
from typing import ClassVar

from kafka_why.contract.kafka.requests import (
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
    TopicMetadata,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStateResult,
)
from state.kafka.protocol import KafkaProtocol, Learners
from state.kafka.share import others, takeover
from state.kafka.share.alter_offsets import alter_offsets
from state.kafka.share.delete_offsets import delete_offsets
from state.kafka.share.deletion import delete_group
from state.kafka.share.describe import describe, describe_offsets
from state.kafka.share.heartbeat import heartbeat, heartbeat_no_share_group
from state.kafka.share.leaving import deadline_reached
from state.kafka.share.no_share_group import (
    alter_no_offsets,
    delete_no_offsets,
    describe_no_group,
    describe_no_offsets,
    refusal_of_describe,
    refusal_of_heartbeat,
    refusal_of_offsets,
)
from state.kafka.share.parked import answer_parked
from state.kafka.share.progress import note_state, progress_of
from state.kafka.share.settings import SETTINGS
from state.kafka.share.state_result import state_result
from state.kafka.share.timers import armed, armed_of
from state.kafka.share.topics import topic_metadata
from state.kafka.share.view import view_of
from state.kafka.share_group import ShareGroup
from state.protocol import Handlers, WhyRefused


class Share(KafkaProtocol[ShareGroup]):
    """The protocol of share groups. See `KafkaProtocol`. Requests that the share coordinator has a part
    in are parked."""

    group_class = ShareGroup
    handlers: ClassVar[Handlers] = {
        ShareGroupHeartbeat: heartbeat,
        ShareGroupDescribe: describe,
        DescribeShareGroupOffsets: describe_offsets,
        AlterShareGroupOffsets: alter_offsets,
        DeleteShareGroupOffsets: delete_offsets,
        DeleteGroup: delete_group,
        JoinGroup: others.join,
        SyncGroup: others.sync,
        Heartbeat: others.heartbeat,
        LeaveGroup: others.leave,
        OffsetFetch: others.fetch_offsets,
        OffsetDelete: others.delete_offsets,
    }
    without_own_group: ClassVar[Handlers] = {
        ShareGroupHeartbeat: heartbeat_no_share_group,
        ShareGroupDescribe: describe_no_group,
        DescribeShareGroupOffsets: describe_no_offsets,
        AlterShareGroupOffsets: alter_no_offsets,
        DeleteShareGroupOffsets: delete_no_offsets,
    }
    facts: ClassVar[Learners] = {TopicMetadata: topic_metadata, ShareStateResult: state_result}
    refusals: ClassVar[Mapping[type, WhyRefused]] = {
        ShareGroupHeartbeat: refusal_of_heartbeat,
        ShareGroupDescribe: refusal_of_describe,
        DescribeShareGroupOffsets: refusal_of_offsets,
        AlterShareGroupOffsets: refusal_of_offsets,
        DeleteShareGroupOffsets: refusal_of_offsets,
    }
    settings = SETTINGS.settings
    checks_group_id = (ShareGroupHeartbeat,)  # row SH7

    timers = staticmethod(armed)
    timers_of = staticmethod(armed_of)
    deadline_reached = staticmethod(deadline_reached)
    take_over = staticmethod(takeover.take_over)
    shift_deadlines = staticmethod(takeover.shift_deadlines)
    release = staticmethod(takeover.release)
    answer_parked = staticmethod(answer_parked)

    conflict_of = staticmethod(SETTINGS.conflict_of)
    check_commit = staticmethod(others.check_commit)
    check_txn_commit = staticmethod(others.check_commit)
    before = staticmethod(progress_of)
    settle = staticmethod(note_state)
    view = staticmethod(view_of)


SHARE = Share()
