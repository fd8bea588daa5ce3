"""The cost of more and more groups, members, partitions and offsets, doubled step by step, on the topics.

The cost is the time from the append of the requests to their last response. It has a constant part: the rest
of the running batch, and one whole batch.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bench.load.requests import Membership, commit_request, heartbeat_request, join_request, sync_request
from bench.load.topics import TopicsClient, expect_no_error
from bench.report import Figure, Plot, Series, say
from bench.rows.bench import DEFAULT_DELAY_MS, Bench, Plan, RowResult
from bench.stats import percentile
from bench.systems import ON_TOPICS, PREFIX, RunningSystems
from kafka_why.contract.kafka.requests import AnyAnsweredRequest, Protocol
from kafka_why.contract.protocols.subscriptions import Subscription, encode_subscription

GROUPS, MEMBERS, PARTITIONS, OFFSETS = "groups", "members", "partitions", "offsets"
_FIRST_SIZE = {GROUPS: 1_000, MEMBERS: 50, PARTITIONS: 500, OFFSETS: 500}
# The most partitions are within group.max.partitions, 20,000.
_DOUBLINGS, _QUICK_DOUBLINGS = 5, 3
_COPIES = 8  # groups of one size, whose requests are sent together
# The members that join during the initial delay extend it once.
DELAY_S = 2 * DEFAULT_DELAY_MS / 1e3
_ASSIGNED_MEMBERS = 10
_PARTITIONS_A_TOPIC = 500
_PARTITIONS_A_COMMIT = 10
_COMMITS_AT_ONCE = 50

_LABELS = {
    GROUPS: "groups, a heartbeat of each",
    MEMBERS: f"members of a group ({_COPIES} groups at once)",
    PARTITIONS: f"partitions that the coordinator assigns to {_ASSIGNED_MEMBERS} members",
    OFFSETS: f"committed offsets of a group ({_COPIES} groups, each commits {_PARTITIONS_A_COMMIT} of them)",
}

Curves = dict[str, dict[str, list[tuple[int, list[float]]]]]
"""By the growing quantity and the name of the request: each size, with the seconds of each repeat."""


def measure(bench: Bench) -> RowResult:
    """Measure each kind of work with its size doubled."""
    systems = bench.systems(DEFAULT_DELAY_MS).running
    curves = bench.call_in_process(measure_curves, systems, bench.plan)
    row = RowResult()
    for what, curves_by_name in curves.items():
        series = []
        for name, points in curves_by_name.items():
            sizes = [float(size) for size, _ in points]
            medians = [percentile(seconds, 0.5) * 1e3 for _, seconds in points]
            series.append(Series(name, sizes, medians))
            (first_size, first_s), (last_size, last_s) = points[0], points[-1]
            row.figures.append(
                Figure(
                    f"{name}: {last_size:,} {what} beside {first_size:,}", "ms",
                    [s * 1e3 for s in last_s], [s * 1e3 for s in first_s], f"{first_size:,}",
                )
            )  # fmt: skip
        title = f"Cost as the number of {what} grows"
        plot = Plot(f"growth-{what}", title, _LABELS[what], "ms", series, log_x=True, log_y=True, guide=True)
        row.plots.append(plot)
    return row


def measure_curves(systems: RunningSystems, plan: Plan) -> Curves:
    """Measure each kind of work at each size."""
    doublings = _QUICK_DOUBLINGS if plan.is_quick else _DOUBLINGS
    repeats = min(plan.repeats, 2)
    curves: Curves = {}
    with TopicsClient(systems.servers, PREFIX, packed=systems.packed) as client, systems.run_only(ON_TOPICS):
        for what, measure_size in _MEASURES.items():
            curves[what] = {}
            for doubling in range(doublings + 1):
                size = _FIRST_SIZE[what] << doubling
                began_s = time.monotonic()
                for name, seconds in measure_size(client, size, repeats):
                    curves[what].setdefault(name, []).append((size, seconds))
                say(f"    {size:,} {what}: {time.monotonic() - began_s:.1f} s")
    return curves


Steps = Iterator[tuple[str, list[float]]]
"""Names of requests, with the seconds of each repeat."""


def _groups(client: TopicsClient, size: int, repeats: int) -> Steps:
    members = client.form_groups([_id() for _ in range(size)])
    heartbeats = [heartbeat_request(member) for member in members]
    _took_s(client, heartbeats)  # warm-up
    yield "heartbeats", [_took_s(client, heartbeats) for _ in range(repeats)]
    client.end_groups(members)


def _members(client: TopicsClient, size: int, repeats: int) -> Steps:
    joins, syncs = [], []
    for _ in range(repeats):
        requests = [join_request(group) for group in _ids() for _ in range(size)]
        took_s, members = _join(client, requests)
        joins.append(took_s - DELAY_S)
        groups = [members[first : first + size] for first in range(0, len(members), size)]
        leaders = [next(member for member, is_leader in group if is_leader) for group in groups]
        syncs.append(
            _took_s(
                client,
                [
                    sync_request(member, [m for m, _ in group] if member == leader else ())
                    for group, leader in zip(groups, leaders, strict=True)
                    for member, _ in group
                ],
            )
        )
        client.end_groups([member for member, _ in members])
    yield "JoinGroup, less the initial delay", joins
    yield "SyncGroup", syncs


def _partitions(client: TopicsClient, size: int, repeats: int) -> Steps:
    topics = [f"assigned-{number}" for number in range(-(-size // _PARTITIONS_A_TOPIC))]
    metadata = encode_subscription(Subscription(tuple(topics)))
    joins = []
    for _ in range(repeats):
        request = msgspec.structs.replace(
            join_request(_id()),
            protocols=[Protocol("coordinator:uniform", metadata)],
            partitions_per_topic=dict.fromkeys(topics, _PARTITIONS_A_TOPIC),
        )
        took_s, members = _join(client, [request] * _ASSIGNED_MEMBERS)
        joins.append(took_s - DELAY_S)
        client.end_groups([member for member, _ in members])
    yield "JoinGroup with the assignment, less the initial delay", joins


def _offsets(client: TopicsClient, size: int, repeats: int) -> Steps:
    members = client.form_groups(_ids())
    for first in range(0, size, _COMMITS_AT_ONCE):
        partitions = range(first, first + _COMMITS_AT_ONCE)
        _took_s(client, [commit_request(member, 1, partitions) for member in members])
    committed_again = range(_PARTITIONS_A_COMMIT)
    commits = [commit_request(member, 2, committed_again) for member in members]
    yield "OffsetCommit", [_took_s(client, commits) for _ in range(3 * repeats)]
    client.end_groups(members)


_MEASURES: dict[str, Callable[[TopicsClient, int, int], Steps]] = {
    GROUPS: _groups,
    MEMBERS: _members,
    PARTITIONS: _partitions,
    OFFSETS: _offsets,
}


def _join(
    client: TopicsClient, requests: Sequence[AnyAnsweredRequest]
) -> tuple[float, list[tuple[Membership, bool]]]:
    """Send JoinGroups. Return the seconds until the last response, and each member with True for a leader."""
    began_s = time.perf_counter()
    answers = [expect_no_error(answer) for answer in client.ask(requests)]
    took_s = time.perf_counter() - began_s
    members = [
        (
            Membership(request.group_id, answer.member_id, answer.generation_id),
            answer.leader == answer.member_id,
        )
        for request, answer in zip(requests, answers, strict=True)
    ]
    return took_s, members


def _took_s(client: TopicsClient, requests: Sequence[AnyAnsweredRequest]) -> float:
    """Send requests, and return the seconds until the last response."""
    began_s = time.perf_counter()
    for answer in client.ask(requests):
        expect_no_error(answer)
    return time.perf_counter() - began_s


def _ids() -> list[str]:
    return [_id() for _ in range(_COPIES)]


def _id() -> str:
    return f"growth-{uuid.uuid4()}"
