"""Formats a report as text for an operator in an incident: the cause first, and nothing that is not
needed.
"""

from collections.abc import Iterator, Sequence

from kafka_why.contract.kafka.history import BY_EPOCHS, DEAD, GroupState
from kafka_why.contract.kafka.snapshot import last_commit_in
from kafka_why.contract.messages import ANONYMOUS
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.client_telemetry import client_lines
from kafka_why.why.deliveries.text import deliveries_text
from kafka_why.why.epoch_text import epoch_lines
from kafka_why.why.model import CauseKind, ClientRole, Joined, MemberMoves, Moves, Rebalance, RebalanceOutcome
from kafka_why.why.reconciling import flat, partition_count
from kafka_why.why.report import Report, names_in
from kafka_why.why.share_state import share_lines
from kafka_why.why.tasks import streams_lines, task_lines
from kafka_why.why.work import work_lines
from kafka_why.wording import (
    INDENT,
    Clock,
    Lines,
    Names,
    VisibleText,
    columns,
    count,
    duration_text,
    partition_list,
    partitions_text,
    shortened,
    tally,
    trigger_text,
    visible_text,
)

MAX_REBALANCES = 20
MAX_MEMBER_LINES = 8
# For these kinds of causes, the kind and the member say all that the reason says.
_EXPLAINED_BY_KIND = (
    CauseKind.MEMBER_JOINED,
    CauseKind.MEMBER_LEFT,
    CauseKind.METADATA_CHANGED,
    CauseKind.LEADER_REJOINED,
)


def report_text(report: Report, clock: Clock) -> VisibleText:
    """Return the report as text: summary, rebalances (only the last MAX_REBALANCES), deliveries."""
    names = names_of(report)
    blocks: list[str] = [visible_text([_headline(report, clock), *columns(_summary(report, clock, names))])]
    shown = report.rebalances[-MAX_REBALANCES:]
    hidden = len(report.rebalances) - len(shown)
    if hidden:
        blocks.append(f"({hidden} earlier rebalances are not shown: see them with -o json)")
    blocks += [rebalance_text(r, report.now_ms, clock, names) for r in shown]
    if report.deliveries is not None:
        blocks.append(deliveries_text(report.deliveries, clock, names))
    return visible_text(blocks, "\n\n")


def names_of(report: Report) -> Names:
    """Return short names for all members in the report."""
    return names_in(report.members, report.rebalances, report.clients)


def cause_text(rebalance: Rebalance, names: Names) -> str:
    """Return a text such as `session timeout: worker-2`."""
    cause = rebalance.cause
    if cause.kind is CauseKind.UNKNOWN or not cause.member_ids:
        return "cause unknown" if cause.kind is CauseKind.UNKNOWN else str(cause.kind)
    return f"{cause.kind}: {_member_names(cause.member_ids, names)}"


def _headline(report: Report, clock: Clock) -> str:
    state_text = "ended at" if report.state == DEAD else f"is {report.state} since"
    members = "" if report.state == DEAD else f", {count(len(report.members) + report.unnamed, 'member')}"
    since = clock.time(report.state_since_ms)
    zone = clock.zone(report.now_ms)
    generation = f"{'epoch' if report.group_type in BY_EPOCHS else 'generation'} {report.generation}"
    return f"Group {report.group_id} {state_text} {since} {zone}: {generation}{members}"


def _summary(report: Report, clock: Clock, names: Names) -> Lines:
    summary = report.summary
    since_ms = report.from_ms if report.since_ms is None else max(report.since_ms, report.from_ms)
    yield "Rebalances", f"{summary.rebalances} since {clock.time(since_ms)}"
    yield from tally("Causes", [(c.rebalances, c.kind, c.by_client) for c in summary.causes])
    if summary.rebalances:
        least = "at least " if any(r.is_longer_than_known for r in report.rebalances) else ""
        total = f"{least}{duration_text(summary.not_stable_ms)} in total"
        longest = f", longest {duration_text(summary.longest_ms)} (#{summary.longest})"
        yield "Not Stable", f"{total}{longest if summary.rebalances > 1 else ''}"
        if any(r.moves is not None for r in report.rebalances):
            noun = "task" if report.group_type == "streams" else "partition"
            has_needless = any(
                r.moves is not None and r.moves.needless is not None for r in report.rebalances
            )
            needlessly = f", {summary.needless} needlessly" if has_needless else ""
            yield "Moved", f"{count(summary.moved, noun)}{needlessly}"
            if summary.needless:
                yield "", "needlessly: from owners that stayed, although an even split did not need it"
    if report.shares is not None:
        yield from share_lines(report.shares, report.now_ms)
    if report.streams is not None:
        yield from streams_lines(report.streams, report.now_ms, clock, names)
    for note in report.notes:
        yield "Note", names.put_in(note)


def rebalance_text(r: Rebalance, now_ms: int, clock: Clock, names: Names) -> VisibleText:
    """Return the lines about one rebalance."""
    head = f"#{r.number}  {clock.time(r.began_ms)}  {cause_text(r, names)}"
    return visible_text([head, *(INDENT + line for line in columns(details(r, now_ms, names)))])


# The usual reasons why a client leaves and comes back.
_USUAL_ABSENCES = {
    CauseKind.MEMBER_LEFT: "a restart, or processing that exceeded max.poll.interval.ms",
    CauseKind.SESSION_TIMEOUT: "a process that was killed and restarted, or paused (GC, suspended)",
    CauseKind.MEMBER_GONE: "a restart, processing that exceeded max.poll.interval.ms, or a paused process",
}


def details(r: Rebalance, now_ms: int, names: Names) -> Lines:
    """Yield the lines about a rebalance, each with its label."""
    yield from _cause_lines(r, names)
    yield from client_lines(r, names, ClientRole.CAUSE)
    if r.converted is not None and r.cause.kind is not CauseKind.CONVERTED:
        yield "changed", names.put_in(r.converted)
    if r.returned is not None:
        yield "back", _return_text(r, r.returned, names)
    yield "took", _took_text(r, now_ms)
    yield from epoch_lines(r, names) if r.has_epochs else _awaited_lines(r, names)
    yield from _removal_lines(r, names)
    yield from client_lines(r, names, ClientRole.REMOVED, ClientRole.AWAITED)
    if not r.has_epochs:
        yield from _generation_lines(r, names)
    if r.moves is not None and (r.moves.partitions or r.moves.released):
        yield "moved", _moves_text(r.moves, "task" if r.has_tasks else "partition")
        yield from (("", line) for line in _member_lines(r.moves.members, names))
    elif r.assignment_bytes:
        sizes = [f"{names.of(m)} {size}" for m, size in r.assignment_bytes.items()]
        yield "assigned", f"bytes that are not a consumer assignment: {shortened(sizes)}"
    yield from task_lines(r, names)
    yield from work_lines(r, names)
    if r.idle is not None and r.idle.partitions and r.idle.longest_ms:
        longest = duration_text(r.idle.longest_ms)
        idle = count(r.idle.partitions, "task" if r.has_tasks else "partition")
        yield "idle", f"{idle}, for up to {longest}"


def _cause_lines(r: Rebalance, names: Names) -> Lines:
    """Yield the reason of the rebalance, the request or deadline, and the member that caused it."""
    has_more_reasons = r.has_tasks and "; " in r.cause.reason  # a streams group's new epoch may have several
    if r.cause.kind not in _EXPLAINED_BY_KIND or last_commit_in(r.cause.reason) or has_more_reasons:
        yield "why", names.put_in(r.cause.reason)
    if partitions := _new_partitions(r):
        yield "likely", f"topics gained partitions, so members rejoined: {partitions} had no owner before"
    if r.cause.client_reason:
        yield "it said", r.cause.client_reason
    if r.cause.trigger is not None:
        who = f" of {r.cause.principal}" if r.cause.principal not in (None, ANONYMOUS) else ""
        yield "trigger", f"{names.put_in(trigger_text(r.cause.trigger))}{who}"
    if len(r.cause.member_ids) == 1:
        (member_id,) = r.cause.member_ids
        host = f" at {r.cause.client_host}" if r.cause.client_host else ""
        if names.of(member_id) != member_id:  # the cause has only the short name
            yield "member", f"{member_id}{host}"


def _new_partitions(r: Rebalance) -> str:
    """Return the partitions that topics have probably gained, or "".

    If a rebalance began because a member joined again, and assigned partitions that had no owner before, the
    topics have probably gained these partitions.
    """
    joined_again = (CauseKind.JOINED_AGAIN, CauseKind.LEADER_REJOINED, CauseKind.METADATA_CHANGED)
    if r.moves is None or not r.moves.fresh or r.cause.kind not in joined_again:
        return ""
    gained = {partition for member in r.moves.members for partition in flat(member.gained)}
    gained_from_nobody = gained.difference(*(flat(member.lost) for member in r.moves.members))
    # If these are more than the fresh ones, members lost the others in the rebalance before: a cooperative
    # assignor moves partitions in two rebalances.
    return partition_list(gained_from_nobody) if len(gained_from_nobody) == r.moves.fresh else ""


def _return_text(r: Rebalance, returned: Joined, names: Names) -> str:
    """Return when the client came back. If it gave no reason, add the usual causes of an absence."""
    text = f"as {names.of(returned.member_id)} after {duration_text(returned.after_ms)}"
    return text if r.cause.client_reason else f"{text}: {_USUAL_ABSENCES[r.cause.kind]}"


def _took_text(r: Rebalance, now_ms: int) -> str:
    """Return the duration of the rebalance, with the time for each part, or what it waits for."""
    if r.is_begin_unknown and r.completing_ms:  # records before Kafka 2.1 have no time of the generation
        return f"{duration_text(r.completing_ms)} for the assignment; its beginning was not seen"
    if r.is_begin_unknown:
        return "unknown: its beginning was not seen"
    caveat = ", and began before the history" if r.beginning_lost else ""
    if r.began_within_ms:
        caveat = f"; it began up to {duration_text(r.began_within_ms)} before it was seen"
    if r.outcome is RebalanceOutcome.UNDER_WAY:
        has_target = any(new.target_after_ms is not None for new in r.epochs)
        waiting = (
            "waiting for a heartbeat to compute the target assignment"
            if r.is_shared and not has_target
            else "waiting for the initial delay, the assignment interval or a heartbeat"
            if r.has_tasks and not has_target
            else "waiting for members to reach the target assignment"
            if r.has_epochs
            else "waiting for members to join"
            if r.generation_to is None
            else "waiting for the leader's assignment"
        )
        return f"{duration_text(max(now_ms - r.began_ms, 0))} so far, {waiting}{caveat}"
    if r.ended_ms is None:
        return "its end is not in the history"
    total = duration_text(r.ended_ms - r.began_ms)
    until = {
        RebalanceOutcome.STABLE: "until Stable",
        RebalanceOutcome.EMPTY: "until Empty",
        RebalanceOutcome.SUPERSEDED: "until the next rebalance superseded it",
        RebalanceOutcome.CONVERTED: "until the group changed its protocol",
    }.get(r.outcome, "until the group ended")
    phases = []
    if r.preparing_ms is not None:
        phases.append(f"{duration_text(r.preparing_ms)} for members to join")
    if r.completing_ms is not None:
        phases.append(f"{duration_text(r.completing_ms)} for the assignment")
    return f"{total} {until}{': ' if phases else ''}{', '.join(phases)}{caveat}"


def _awaited_lines(r: Rebalance, names: Names) -> Lines:
    """Yield lines about the members that a classic group waited for, and about extensions of its wait."""
    if r.observed:
        if r.waited_for:
            yield "awaited", f"{_member_names(r.waited_for, names)} (inferred)"
        return
    joined_after_ms = {j.member_id: j.after_ms for j in r.joined}
    removed = {gone.member_id for gone in r.removed}
    rejoined = sorted((m for m in r.waited_for if m in joined_after_ms), key=lambda m: -joined_after_ms[m])
    if rejoined:
        texts = [f"{names.of(m)} {duration_text(joined_after_ms[m])}" for m in rejoined]
        yield "rejoined", shortened(texts)  # the slowest first
    not_rejoined = [m for m in r.waited_for if m not in joined_after_ms and m not in removed]
    # A client that had a member id, but had not joined when the generation was formed, is not a member.
    silent = [m for m in not_rejoined if m in r.members]
    if not_rejoined and r.outcome is RebalanceOutcome.UNDER_WAY and r.generation_to is None:
        yield "awaited", _member_names(not_rejoined, names)
    elif silent:
        yield "silent", f"{_member_names(silent, names)}: did not rejoin, but is still in the group"
    if r.from_state == GroupState.EMPTY and r.extensions:
        yield "extended", f"the initial delay, {count(r.extensions, 'time')}, because more members joined"
    elif r.extensions:
        yield "extended", f"{count(r.extensions, 'time')}, because no member had rejoined"
    if r.last in removed and len(r.waited_for) > 1:
        yield "last", f"{names.of(r.last or '')}, which never rejoined"


def _removal_lines(r: Rebalance, names: Names) -> Lines:
    """Yield the members that were removed during the rebalance, without those whose removal began it."""
    for gone in r.removed:
        if gone.member_id not in r.cause.member_ids or gone.after_ms > 0:
            quoted = f' ("{gone.client_reason}")' if gone.client_reason else ""
            reason = f"{names.put_in(gone.reason)}{quoted}"
            after = "" if r.is_begin_unknown else f" after {duration_text(gone.after_ms)}"
            yield "removed", f"{names.of(gone.member_id)}{after}: {reason}"


def _generation_lines(r: Rebalance, names: Names) -> Lines:
    if r.generation_to is None or r.outcome is RebalanceOutcome.UNKNOWN:
        return
    change = f"generation {r.generation_from} -> {r.generation_to}"
    if r.outcome is RebalanceOutcome.EMPTY:
        yield "formed", f"{change}, without members"
        return
    parts = [change]
    if r.members:
        parts.append(count(len(r.members), "member"))
    if r.leader_id is not None:
        parts.append(f"leader {names.of(r.leader_id)}")
    if r.protocol_name is not None:
        parts.append(f"protocol {r.protocol_name}")
    yield "formed", ", ".join(parts)
    if r.outcome is RebalanceOutcome.SUPERSEDED:
        yield "", "no assignment arrived"


def _moves_text(moves: Moves, noun: str) -> str:
    needlessly = "" if moves.needless is None else f", {moves.needless} needlessly"
    parts = [f"{moves.moved} of {count(moves.partitions, noun)}{needlessly}"]
    if moves.fresh:
        parts.append(f"{moves.fresh} had no owner before")
    if moves.released:
        parts.append(f"{moves.released} have none now")
    return "; ".join(parts)


def _member_lines(members: Sequence[MemberMoves], names: Names) -> Iterator[str]:
    """Yield a line about each member whose partitions changed, at most MAX_MEMBER_LINES.

    The members with the greatest changes come first.
    """
    changed = [m for m in members if m.gained or m.lost]
    changed.sort(key=lambda m: -partition_count(m.gained) - partition_count(m.lost))
    shown = changed[:MAX_MEMBER_LINES]
    width = max((len(names.of(m.member_id)) for m in shown), default=0)
    digits = max((len(str(max(m.before, m.after))) for m in shown), default=0)
    for m in shown:
        counts = f"{m.before:>{digits}} -> {m.after:>{digits}}"
        changes = [f"{sign} {partitions_text(ps)}" for sign, ps in (("+", m.gained), ("-", m.lost)) if ps]
        yield f"{names.of(m.member_id):<{width}}  {counts}  {'   '.join(changes)}"
    if len(changed) > len(shown):
        yield f"and {len(changed) - len(shown)} more members"


def _member_names(member_ids: Sequence[MemberId], names: Names) -> str:
    return shortened([names.of(m) for m in member_ids])
