"""The checks at the end of the demo."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from cli.demo.watch import client_of, partitions_held
from kafka_why.contract.kafka.history import EntryType, HistoryEntry

_LEFT = ("L2", "L6")  # rows of docs/rules.md: the member sent LeaveGroup


class DemoCheck(NamedTuple):
    """A claim, and the finding."""

    claim: str
    ok: bool  # the claim holds
    finding: str


def all_consumed(produced: Set[str], consumed: Mapping[str, int]) -> DemoCheck:
    """Check that every produced record reached a consumer. `consumed` counts how often."""
    missing = produced - consumed.keys()
    again = sum(times - 1 for times in consumed.values())
    finding = f"{len(produced)} produced, {len(missing)} of them not consumed, {again} consumed twice"
    return DemoCheck("every produced record was consumed", bool(produced) and not missing, finding)


def one_owner_each(entries: Sequence[HistoryEntry], partitions: int) -> DemoCheck:
    """Check that each partition had exactly one owner in every generation."""
    stable = [entry for entry in entries if entry.type is EntryType.STABLE]
    wrong = [
        entry.generation
        for entry in stable
        if sorted(p for held in partitions_held(entry).values() for p in held) != list(range(partitions))
    ]
    finding = f"{len(stable)} generations of {partitions} partitions, wrong: {wrong or 'none'}"
    claim = "each generation gave every partition to exactly one member"
    return DemoCheck(claim, bool(stable) and not wrong, finding)


def only_expired(entries: Sequence[HistoryEntry], killed: str) -> DemoCheck:
    """Check that only the killed consumer expired."""
    gone = [e for e in entries if e.type is EntryType.MEMBER_REMOVED and e.rule not in _LEFT]
    clients = [client_of(entry.member_id or "") for entry in gone]
    finding = ", ".join(clients) or "no member expired"
    return DemoCheck(f"the killed {killed} expired, and no other member did", clients == [killed], finding)


def broker_has_no_group(group_ids: Sequence[str]) -> DemoCheck:
    """Check that the broker's own coordinator has no group. `group_ids` are those that it lists."""
    finding = f"it lists {', '.join(group_ids) or 'none'}"
    return DemoCheck("the broker's own coordinator knows no group", not group_ids, finding)
