"""The clients and hosts of all groups: their present memberships, and the rebalances that they caused.

The causes come from the overview's report on each group's last hour.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest
from itertools import takewhile

from msgspec import Struct

from kafka_why.contract.history_reader import AnyView
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, ProtocolError
from kafka_why.page.fleet import GroupFacts
from kafka_why.page.words import thousands
from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.wording import count

GROUPS_NAMED = 5
"""Maximum number of groups named in a line, those with most of its rebalances first. The others are only
counted.
"""


class MemberGrouping(StrEnum):
    """The key by which members are grouped into lines."""

    CLIENT = "client"
    HOST = "host"


class GroupRebalances(Struct, frozen=True):
    """A group in which a client is a member, or was one when it caused rebalances."""

    group_id: str
    rebalances: int


class MemberLine(Struct, frozen=True, kw_only=True):
    """The line of a client id or a host."""

    name: str
    members: int
    partitions: int | None  # None if no member's are known
    rebalances: int
    causes: dict[str, int]  # number of rebalances of the last hour by kind of cause
    groups_number: int
    groups: list[GroupRebalances]  # at most GROUPS_NAMED


class Members(Struct, frozen=True, kw_only=True):
    """The lines of all clients and hosts. Those that caused the most rebalances are first."""

    lines: dict[MemberGrouping, list[MemberLine]]
    rebalances: int = 0  # of the last hour
    of_nobody: dict[str, int] = {}  # rebalances without a known client as their cause
    groups_without_members: int = 0  # with too many members for their views


EMPTY = Members(lines={by: [] for by in MemberGrouping})


@dataclass(frozen=True, slots=True)
class ViewMembers:
    """A view, with the members' numbers of partitions where these are known."""

    view: AnyView
    partitions: Mapping[str, int]

    def members(self) -> Iterator[tuple[str, str, int | None]]:
        """Yield each member's client id, host and number of partitions."""
        if isinstance(self.view, GroupSnapshot):
            for m in self.view.members:
                yield m.client_id, m.client_host, self.partitions.get(m.member_id)
        else:
            # RocketMQ's clients have no host here, and do not report their queues.
            for client_id in sorted({consumer.client_id for consumer in self.view.consumers}):
                yield client_id, "", None

    @property
    def is_cut(self) -> bool:
        """True if the view omits its many members."""
        view = self.view
        there = view.members if isinstance(view, GroupSnapshot) else view.consumers
        return view.truncated and not there


def view_members(view: AnyView) -> ViewMembers:
    """Count the partitions of each member, or of none if an assignment is unreadable."""
    if not isinstance(view, GroupSnapshot) or (not view.consumer and view.protocol_type != PROTOCOL_TYPE):
        return ViewMembers(view, {})
    try:
        return ViewMembers(view, {m.member_id: len(m.held()) for m in view.members})
    except ProtocolError:
        return ViewMembers(view, {})


@dataclass(slots=True)
class _Sum:
    members: int = 0
    partitions: int | None = None
    causes: Counter[str] = field(default_factory=Counter)
    groups: dict[str, int] = field(default_factory=dict)

    def add(self, group_id: str, partitions: int | None) -> None:
        self.members += 1
        self.groups.setdefault(group_id, 0)
        if partitions is not None:
            self.partitions = (self.partitions or 0) + partitions

    def line(self, name: str) -> MemberLine:
        # Tuples with the negative number first need no key function, which would be slower.
        first = nsmallest(GROUPS_NAMED, [(-number, group_id) for group_id, number in self.groups.items()])
        return MemberLine(
            name=name,
            members=self.members,
            partitions=self.partitions if self.members else 0,
            rebalances=self.causes.total(),
            causes=dict(self.causes.most_common()),
            groups_number=len(self.groups),
            groups=[GroupRebalances(group_id, -number) for number, group_id in first],
        )


class MembersSum:
    """An accumulator of groups, whose `members` returns the lines."""

    def __init__(self) -> None:
        self._clients: dict[str, _Sum] = {}
        self._hosts: dict[str, _Sum] = {}
        self._causes_without_client: Counter[str] = Counter()
        self._rebalances = self._cut = 0

    def add(self, facts: GroupFacts, seen: ViewMembers, rebalances: Sequence[Rebalance]) -> None:
        """Add a group with the rebalances of its last hour."""
        self._cut += seen.is_cut
        group_id = facts.group_id
        for client_id, host, partitions in seen.members():
            if client_id:
                _sum(self._clients, client_id).add(group_id, partitions)
            if host:
                _sum(self._hosts, host).add(group_id, partitions)
        for rebalance in rebalances:
            self._add_cause(group_id, rebalance)

    def members(self) -> Members:
        """Return all lines in the order of rebalances, then of members."""
        return Members(
            lines={MemberGrouping.CLIENT: _lines(self._clients), MemberGrouping.HOST: _lines(self._hosts)},
            rebalances=self._rebalances,
            of_nobody=dict(self._causes_without_client.most_common()),
            groups_without_members=self._cut,
        )

    def _add_cause(self, group_id: str, rebalance: Rebalance) -> None:
        cause = rebalance.cause
        self._rebalances += 1
        if not cause.client_id:
            self._causes_without_client[cause.kind] += 1
        for sums, name in ((self._clients, cause.client_id), (self._hosts, cause.client_host)):
            if name:
                found = _sum(sums, name)
                found.causes[cause.kind] += 1
                found.groups[group_id] = found.groups.get(group_id, 0) + 1


def _sum(sums: dict[str, _Sum], name: str) -> _Sum:
    found = sums.get(name)
    if found is None:
        found = sums[name] = _Sum()
    return found


def _lines(sums: Mapping[str, _Sum]) -> list[MemberLine]:
    return sorted((one.line(name) for name, one in sums.items()), key=_ORDERS["rebalances"])


def sentence(members: Members, by: MemberGrouping) -> str:
    """Return a sentence that names the client or host that caused the most rebalances of the last hour."""
    whole = members.rebalances
    if not whole:
        return "No group has rebalanced in the last hour."
    first = next((line for line in members.lines[by] if line.rebalances), None)
    if first is None:
        them = "the one rebalance" if whole == 1 else f"one of the {thousands(whole)} rebalances"
        return f"No {by} is known to have caused {them} of the last hour."
    as_many = takewhile(lambda line: line.rebalances == first.rebalances, members.lines[by])
    others = sum(1 for _ in as_many) - 1
    if others:
        each = f"{_named(first.name, by)} and {count(others, f'other {by}')} each caused {first.rebalances}"
        return f"{each} of the {thousands(whole)} rebalances of the last hour."
    if whole == 1:
        part = "the one rebalance"
    else:
        number = "all" if first.rebalances == whole else f"{thousands(first.rebalances)} of the"
        part = f"{number} {thousands(whole)} rebalances"
    return f"{_named(first.name, by)} caused {part} of the last hour: {causes_text(first.causes)}."


def _named(name: str, by: MemberGrouping) -> str:
    return name if by is MemberGrouping.CLIENT else f"Host {name}"


def causes_text(causes: Mapping[str, int]) -> str:
    """Return a text such as `13 x session timeout, 1 x member joined`."""
    return ", ".join(f"{number} x {kind}" for kind, number in causes.items())


_COMMON_CAUSES = (CauseKind.SESSION_TIMEOUT, CauseKind.MEMBER_JOINED, CauseKind.MEMBER_LEFT)


def columns_of(line: MemberLine) -> Iterator[int]:
    """Yield the numbers of rebalances by the common causes, and by all other causes."""
    yield from (line.causes.get(kind, 0) for kind in _COMMON_CAUSES)
    yield sum(number for kind, number in line.causes.items() if kind not in _COMMON_CAUSES)


class MembersSelection(Struct, frozen=True, kw_only=True):
    """The filter and order of the lines. A reader can share it as an address."""

    by: MemberGrouping = MemberGrouping.CLIENT
    text: str = ""
    sort: str = "rebalances"
    page: int = 1

    def of(self, members: Members) -> list[MemberLine]:
        """Return the lines whose name contains `text`, in the order of `sort`."""
        wanted = self.text.casefold()
        found = [line for line in members.lines[self.by] if wanted in line.name.casefold()]
        order = _ORDERS.get(self.sort)
        return found if order is None else sorted(found, key=order)


def _timeouts(line: MemberLine) -> int:
    return line.causes.get(CauseKind.SESSION_TIMEOUT, 0)


_ORDERS = {
    "rebalances": lambda line: (-line.rebalances, -_timeouts(line), -line.members, line.name),
    "name": lambda line: line.name,
    "groups": lambda line: (-line.groups_number, line.name),
    "members": lambda line: (-line.members, line.name),
    "partitions": lambda line: (-(line.partitions or 0), line.name),
    "timeouts": lambda line: (-_timeouts(line), line.name),
    "joins": lambda line: (-line.causes.get(CauseKind.MEMBER_JOINED, 0), line.name),
    "leaves": lambda line: (-line.causes.get(CauseKind.MEMBER_LEFT, 0), line.name),
}
MEMBER_SORTS = tuple(_ORDERS)
