"""The clients and hosts of all groups: their present memberships, and the rebalances that they caused.

The causes come from the overview's report on each group's last hour. The members come from each group's
view, the latest snapshot of its state.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest

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
    members: int  # number of present members
    partitions: int | None  # number of their partitions; None if unknown for every member
    rebalances: int
    causes: dict[str, int]  # number of rebalances of the last hour by kind of cause
    groups_number: int  # number of all groups, also of those that `groups` omits
    groups: list[GroupRebalances]  # at most GROUPS_NAMED


class Members(Struct, frozen=True, kw_only=True):
    """The lines of all clients and hosts. Those that caused the most rebalances are first."""

    lines: dict[MemberGrouping, list[MemberLine]]
    rebalances: int = 0  # of the last hour
    of_nobody: dict[str, int] = {}  # number of rebalances that no known client caused, by kind of cause
    groups_without_members: int = 0  # groups whose views omit their members, because there are too many


EMPTY = Members(lines={by: [] for by in MemberGrouping})


@dataclass(frozen=True, slots=True)
class ViewMembers:
    """The members in a view."""

    view: AnyView
    partitions: Mapping[str, int]  # each member's number of partitions, if known

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
    def are_omitted(self) -> bool:
        """True if the view omits its members, because there are too many."""
        view = self.view
        members = view.members if isinstance(view, GroupSnapshot) else view.consumers
        return view.truncated and not members


def view_members(view: AnyView) -> ViewMembers:
    """Return the members of a view. If an assignment is unreadable, no numbers of partitions are known."""
    # The assignments of other classic groups, such as those of Kafka Connect, are not of partitions.
    if not isinstance(view, GroupSnapshot) or (not view.consumer and view.protocol_type != PROTOCOL_TYPE):
        return ViewMembers(view, {})
    try:
        return ViewMembers(view, {m.member_id: len(m.held()) for m in view.members})
    except ProtocolError:
        return ViewMembers(view, {})


@dataclass(slots=True)
class _Totals:
    """The totals of one client id or host."""

    members: int = 0
    partitions: int | None = None  # None if unknown for every member
    causes: Counter[str] = field(default_factory=Counter)  # number of rebalances by kind of cause
    groups: dict[str, int] = field(default_factory=dict)  # number of rebalances by group id

    def add(self, group_id: str, partitions: int | None) -> None:
        """Add a member with its number of partitions."""
        self.members += 1
        self.groups.setdefault(group_id, 0)
        if partitions is not None:
            self.partitions = (self.partitions or 0) + partitions

    def line(self, name: str) -> MemberLine:
        # The groups with the most rebalances. Their tuples need no key function, which would be slower.
        top = nsmallest(GROUPS_NAMED, [(-number, group_id) for group_id, number in self.groups.items()])
        return MemberLine(
            name=name,
            members=self.members,
            partitions=self.partitions if self.members else 0,
            rebalances=self.causes.total(),
            causes=dict(self.causes.most_common()),
            groups_number=len(self.groups),
            groups=[GroupRebalances(group_id, -number) for number, group_id in top],
        )


class MembersSum:
    """An accumulator of groups. Its `members` returns the lines of all groups that were added."""

    def __init__(self) -> None:
        self._clients: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._hosts: defaultdict[str, _Totals] = defaultdict(_Totals)
        self._causes_without_client: Counter[str] = Counter()
        self._rebalances = self._groups_without_members = 0

    def add(self, facts: GroupFacts, present: ViewMembers, rebalances: Sequence[Rebalance]) -> None:
        """Add a group with its present members and the rebalances of its last hour."""
        self._groups_without_members += present.are_omitted
        group_id = facts.group_id
        for client_id, host, partitions in present.members():
            if client_id:
                self._clients[client_id].add(group_id, partitions)
            if host:
                self._hosts[host].add(group_id, partitions)
        for rebalance in rebalances:
            self._add_cause(group_id, rebalance)

    def members(self) -> Members:
        """Return all lines in the order of rebalances, then of members."""
        return Members(
            lines={
                MemberGrouping.CLIENT: _sorted_lines(self._clients),
                MemberGrouping.HOST: _sorted_lines(self._hosts),
            },
            rebalances=self._rebalances,
            of_nobody=dict(self._causes_without_client.most_common()),
            groups_without_members=self._groups_without_members,
        )

    def _add_cause(self, group_id: str, rebalance: Rebalance) -> None:
        cause = rebalance.cause
        self._rebalances += 1
        if not cause.client_id:
            self._causes_without_client[cause.kind] += 1
        for sums, name in ((self._clients, cause.client_id), (self._hosts, cause.client_host)):
            if name:
                totals = sums[name]
                totals.causes[cause.kind] += 1
                totals.groups[group_id] = totals.groups.get(group_id, 0) + 1


def _sorted_lines(sums: Mapping[str, _Totals]) -> list[MemberLine]:
    return sorted((one.line(name) for name, one in sums.items()), key=_ORDERS["rebalances"])


def most_causes_sentence(members: Members, by: MemberGrouping) -> str:
    """Return a sentence that names the client or host that caused the most rebalances of the last hour."""
    total = members.rebalances
    if not total:
        return "No group has rebalanced in the last hour."
    first = next((line for line in members.lines[by] if line.rebalances), None)
    if first is None:
        which = "the one rebalance" if total == 1 else f"one of the {thousands(total)} rebalances"
        return f"No {by} is known to have caused {which} of the last hour."
    others = sum(line.rebalances == first.rebalances for line in members.lines[by]) - 1
    if others:
        each = (
            f"{_line_name(first.name, by)} and {count(others, f'other {by}')} each caused {first.rebalances}"
        )
        return f"{each} of the {thousands(total)} rebalances of the last hour."
    if total == 1:
        part = "the one rebalance"
    else:
        number = "all" if first.rebalances == total else f"{thousands(first.rebalances)} of the"
        part = f"{number} {thousands(total)} rebalances"
    return f"{_line_name(first.name, by)} caused {part} of the last hour: {causes_text(first.causes)}."


def _line_name(name: str, by: MemberGrouping) -> str:
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

    def select(self, members: Members) -> list[MemberLine]:
        """Return the lines whose name contains `text`, in the order of `sort`."""
        text = self.text.casefold()
        selected = [line for line in members.lines[self.by] if text in line.name.casefold()]
        order = _ORDERS.get(self.sort)
        return selected if order is None else sorted(selected, key=order)


def _timeout_count(line: MemberLine) -> int:
    return line.causes.get(CauseKind.SESSION_TIMEOUT, 0)


_ORDERS = {
    "rebalances": lambda line: (-line.rebalances, -_timeout_count(line), -line.members, line.name),
    "name": lambda line: line.name,
    "groups": lambda line: (-line.groups_number, line.name),
    "members": lambda line: (-line.members, line.name),
    "partitions": lambda line: (-(line.partitions or 0), line.name),
    "timeouts": lambda line: (-_timeout_count(line), line.name),
    "joins": lambda line: (-line.causes.get(CauseKind.MEMBER_JOINED, 0), line.name),
    "leaves": lambda line: (-line.causes.get(CauseKind.MEMBER_LEFT, 0), line.name),
}
MEMBER_SORTS = tuple(_ORDERS)
