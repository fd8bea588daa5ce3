"""Reconciliation: a member comes to the target assignment in one step. Rows ST9 to ST11.

Nothing has to be given up first, because any number of members may have a partition. Source:
GroupMetadataManager.maybeReconcile, ShareGroupAssignmentBuilder.java.
"""

from collections.abc import Iterable, Mapping

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.snapshot import Partitions, named
from kafka_why.contract.kafka.states import MemberState
from kafka_why.contract.kafka.wording import listed_partitions
from state.kafka.context import StepContext
from state.kafka.share_group import ShareGroup, ShareMember


def reconcile(context: StepContext, member: ShareMember, is_bumped: bool) -> None:
    """Take the member to the group's target assignment. `is_bumped`: the request raised the group epoch. The
    member loses at once what it no longer subscribes to.
    """
    group = context.group_of(ShareGroup)
    epoch = group.assignment_epoch
    if member.member_epoch != epoch:
        row = context.rule("ST10")
    elif is_bumped:
        row = context.rule("ST11")
    else:
        context.rule("ST9")
        return
    subscribed = group.subscribed_ids(member)
    target = group.target.get(member.member_id, {})
    before, epoch_before = member.assigned, member.member_epoch
    member.assigned = {id_: numbers for id_, numbers in target.items() if id_ in subscribed}
    if epoch_before != epoch:
        member.previous_epoch, member.member_epoch = epoch_before, epoch
    elif member.assigned == before:
        return
    context.record_member(
        row,
        EntryType.MEMBER_RECONCILED,
        member,
        _in_words(before, member.assigned, group.names_by_id(), epoch),
        member_epoch=epoch,
        member_state=MemberState.STABLE.value,
        assigned=named(member.assigned, group.names_by_id()),
    )


def _in_words(before: Partitions, after: Partitions, names: Mapping[bytes, str], epoch: int) -> str:
    gets, loses = _without(after, before), _without(before, after)
    parts = []
    if gets:
        parts.append(f"gets {listed_partitions(gets, names)}")
    if loses:
        parts.append(f"loses {listed_partitions(loses, names)}")
    return f"the member {' and '.join(parts) or 'has what it had'} at epoch {epoch}"


def _without(partitions: Partitions, others: Mapping[bytes, Iterable[int]]) -> Partitions:
    """The partitions that are not among the others."""
    left = {id_: sorted(set(numbers).difference(others.get(id_, ()))) for id_, numbers in partitions.items()}
    return {id_: numbers for id_, numbers in left.items() if numbers}
