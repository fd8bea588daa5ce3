"""The lines of a report that only consumer, share and streams groups have: the epochs of a rebalance, and the
progress of each member to its target assignment.
"""

from kafka_why.why.model import (
    AwaitedPartitions,
    CauseKind,
    EpochChange,
    Progress,
    Rebalance,
    RebalanceOutcome,
)
from kafka_why.wording import (
    MAX_MEMBERS,
    Lines,
    Names,
    count,
    duration_text,
    listing,
    member_listing,
    partitions_text,
    shortened,
)

# Kinds of causes without a member. The text of such a cause has the reason instead.
_WITHOUT_MEMBER = (
    CauseKind.TOPICS_CHANGED,
    CauseKind.PATTERN_RESOLVED,
    CauseKind.SETTINGS_CHANGED,
    CauseKind.PARTITIONS_INITIALIZED,
    CauseKind.OFFSETS_ALTERED,
    CauseKind.COORDINATED_ELSEWHERE,
    CauseKind.UNKNOWN,
)


def epoch_lines(r: Rebalance, names: Names) -> Lines:
    """Yield the epochs of a rebalance, and what each member gave up and waited for."""
    before, after = r.generation_from, r.generation_to
    epochs = f"{after}" if before == after else f"{before} -> {after}"
    yield "epoch", f"{epochs}{', the group is empty' if r.outcome is RebalanceOutcome.EMPTY else ''}"
    if len(r.epochs) == 1:
        yield "target", _target_text(r.epochs[0])
    elif r.epochs:
        for new in r.epochs:
            cause = f"{new.cause.kind}{_cause_suffix(new, names)}"
            after_text = duration_text(new.after_ms)
            yield "", f"{new.epoch} after {after_text}: {cause}; target {_target_text(new)}"
    yield from _share_group_lines(r, names)
    # Members that gave up partitions come first, because others may wait for them.
    progress = sorted(r.progress, key=lambda member: not member.revoked)
    texts = [(member, text) for member in progress if (text := _progress_text(member, r, names))]
    yield from member_listing("members", [(names.of(member.member_id), text) for member, text in texts])


def _share_group_lines(r: Rebalance, names: Names) -> Lines:
    """Yield how long new members waited for a target, and which member reached its target last."""
    waits = [text for new in r.epochs if (text := _first_target_text(new, names))]
    yield from listing("waits", waits[:MAX_MEMBERS], len(waits) - MAX_MEMBERS)
    target_ms = next((new.target_after_ms for new in r.epochs if new.target_after_ms is not None), None)
    last_ms = next((member.settled_after_ms for member in r.progress if member.member_id == r.last), None)
    if r.is_shared and r.last and target_ms is not None and last_ms is not None and last_ms > target_ms:
        after = duration_text(last_ms - target_ms)
        yield "last", f"{names.of(r.last)}: its heartbeat came {after} after the target was computed"


def _first_target_text(new: EpochChange, names: Names) -> str:
    """Return a text such as `B joined 1 s after the last assignment, so its first target took 5 s`, or ""."""
    since_ms, target_ms = new.last_target_before_ms, new.target_after_ms
    if since_ms is None or target_ms is None or target_ms <= new.after_ms:
        return ""  # unknown, or the new member got its first target at once
    if new.cause.kind is not CauseKind.MEMBER_JOINED:
        return ""
    members = _cause_suffix(new, names).removeprefix(": ")
    joined = f"{members} joined {duration_text(since_ms)} after the last assignment"
    return f"{joined}, so its first target took {duration_text(target_ms - new.after_ms)}"


def _cause_suffix(change: EpochChange, names: Names) -> str:
    """Return the text after the kind of the cause: `: a, b` (members) or ` (the reason)`."""
    if change.cause.kind in _WITHOUT_MEMBER:
        return f" ({names.put_in(change.cause.reason)})"
    return f": {shortened([names.of(m) for m in change.cause.member_ids])}"


def _target_text(change: EpochChange) -> str:
    """Return a text such as `computed 1.0 s later by range, new for 2 members`."""
    if change.target_after_ms is None:
        return "not computed"
    waited_ms = change.target_after_ms - change.after_ms
    when = f"{duration_text(waited_ms)} later" if waited_ms else "at once"
    changed = f", new for {count(change.changed_targets, 'member')}" if change.changed_targets else ""
    by = "" if change.assignor_name is None else f" by {change.assignor_name}"
    return f"computed {when}{by}{changed}"


def _progress_text(member: Progress, r: Rebalance, names: Names) -> str:
    """Return a text such as `gave up orders 3-5 in 1.0 s; waited 4.0 s for prices 0 of a`."""
    parts = []
    is_removed = any(removed.member_id == member.member_id for removed in r.removed)
    if member.revoked:
        revoked = partitions_text(member.revoked)
        if member.revoking_ms is not None:
            parts.append(f"gave up {revoked} in {duration_text(member.revoking_ms)}")
        elif is_removed:
            parts.append(f"did not give up {revoked}")
        else:
            fenced_ms = member.fenced_after_ms
            removal = (
                "" if fenced_ms is None else f", or is removed {duration_text(fenced_ms)} after the request"
            )
            parts.append(f"has to give up {revoked}{removal}")
    if member.waited_for:
        awaited = " and ".join(_awaited_text(partitions, names) for partitions in member.waited_for)
        if member.waiting_ms is not None:
            verb = f"waited {duration_text(member.waiting_ms)}"
        else:
            verb = "waited in vain" if is_removed else "waits"
        parts.append(f"{verb} for {awaited}")
    return "; ".join(parts)


def _awaited_text(awaited: AwaitedPartitions, names: Names) -> str:
    holder = "" if awaited.of_member_id is None else f" of {names.of(awaited.of_member_id)}"
    return f"{partitions_text(awaited.partitions)}{holder}"
