"""Who may commit to a group: a member of its generation, or anybody while it has no members. Rows O3 to O8,
TO4, TO5.

Source: ClassicGroup.validateOffsetCommit.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OffsetCommit, TxnOffsetCommit
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic.session import arm_session
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext, Verdict


def check_commit(context: StepContext, request: OffsetCommit) -> Verdict:
    """Return the first row that applies. A commit of a member renews its session."""
    group = context.group_of(ClassicGroup)
    if request.generation_id < 0 and group.is_empty:
        return context.rule("O3"), ErrorCode.NONE
    if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
        return context.rule("O4"), ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return context.rule("O5"), error
    if request.generation_id != group.generation:
        return context.rule("O6"), ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return context.rule("O7"), ErrorCode.REBALANCE_IN_PROGRESS
    arm_session(context, group.members[request.member_id])
    return context.rule("O8"), ErrorCode.NONE


def check_txn_commit(context: StepContext, request: TxnOffsetCommit) -> Verdict:
    """No session is renewed, and the state of the group does not matter."""
    group = context.group_of(ClassicGroup)
    has_no_generation = request.generation_id < 0
    is_nobody = has_no_generation and not request.member_id and request.group_instance_id is None
    if is_nobody or (has_no_generation and group.is_empty):
        return context.rule("TO4"), ErrorCode.NONE
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is ErrorCode.NONE and request.generation_id != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    return context.rule("TO5"), error
