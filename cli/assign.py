"""`group-coordinator assign`: the assignment under another assignor or set of members, and its moves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import click

from cli.groups.change import CoordinatorCluster
from kafka_why.assign.model import (
    GroupSpec,
    InputError,
    parse_members,
    parse_topics,
    read_assignment,
    read_group,
    read_weights,
)
from kafka_why.cli.groups.common import connected, output_option, timeout_option
from kafka_why.cli.output import show, show_json
from kafka_why.cli.parameters import ParsedOption, WholeNumber, as_object, cluster_options, prefix_option
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import STREAMS
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.groups.gather import describe_groups, describe_partitions
from kafka_why.wording import Names, visible_text
from operations.assign.compare import (
    CLIENT_STRATEGIES,
    NOW,
    STRATEGIES,
    StrategyResult,
    assignment_result,
    check_strategy,
    live_group,
    outcome_text,
    rounds,
    strategy_result,
    subscribed_topics,
    summary_text,
)
from operations.assign.streams import StreamsSpec, streams_outcomes, streams_spec

_SOURCES = "takes --topics with --members, --input, or --from-group with --bootstrap-servers"

_file = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class AssignOptions:
    """The options of `assign`.

    The group is given by `topics` and `members`, by the file `source`, or by `group_id` of the coordinator on
    `client_config`.
    """

    topics: dict[str, int] | None
    members: str | None  # the text of --members
    source: Path | None
    group_id: str | None
    client_config: ClientConfig | None
    prefix: str
    timeout_ms: int
    strategies: Sequence[str]
    current: str | None  # a file, or the name of a strategy
    removed: Sequence[str]  # names of members
    added: Sequence[str]  # each as in --members
    standbys: Sequence[int]  # numbers of standby replicas, each for a result of its own
    weights: Path | None
    summary: bool
    output: str


@click.command()
@click.option(
    "--topics",
    metavar="TOPIC:N,...|@FILE",
    type=ParsedOption("TOPICS", parse_topics),
    help="Topics with their numbers of partitions, or a file with a JSON object of them.",
)
@click.option(
    "--members",
    metavar="ID[=TOPIC+TOPIC],...|N",
    help="Members with their topics (default: all topics), or the number of members.",
)
@click.option(
    "--input", "source", type=_file, metavar="FILE", help="A group as JSON; docs/assign.md has the format."
)
@click.option(
    "--from-group", "group_id", metavar="GROUP", help="A group of the coordinator in its present state."
)
@cluster_options("The cluster with the coordinator's topics.", required=False)
@prefix_option
@timeout_option
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    default=CLIENT_STRATEGIES,
    type=ParsedOption("NAME", check_strategy),
    metavar="NAME",
    help="A strategy; repeatable; default: the strategies of Kafka's clients. "
    f"Known: {', '.join(STRATEGIES)}.",
)
@click.option(
    "--current",
    metavar="FILE|NAME",
    help="The current assignment: a JSON file, or the strategy that computes it.",
)
@click.option("--without", "removed", multiple=True, metavar="MEMBER", help="A member to remove; repeatable.")
@click.option(
    "--with", "added", multiple=True, metavar="ID[=TOPIC+TOPIC]", help="A member to add; repeatable."
)
@click.option(
    "--standby-replicas",
    "standbys",
    multiple=True,
    type=WholeNumber(0),
    metavar="N",
    help="For a streams group: a number of standby replicas; repeatable; default: the group's own.",
)
@click.option("--weights", type=_file, metavar="FILE", help="Weights of partitions, such as lags, as JSON.")
@click.option("--summary", is_flag=True, help="Show only the comparison of the strategies.")
@output_option
@as_object(AssignOptions, "options")
def assign(options: AssignOptions) -> None:
    """Show which partitions each member would get, and which would move. No consumer takes part.

    Each strategy starts from the current assignment. If none is given and members are added or removed, each
    strategy starts from its own assignment for the earlier members.
    """
    group = _group(options)
    results = (
        _streams_results(group, options) if isinstance(group, StreamsSpec) else _group_results(group, options)
    )
    names = Names([share.member_id for result in results for share in result.shares])
    _show(results, names, options.output, summary=options.summary)


def _group_results(group: GroupSpec, options: AssignOptions) -> list[StrategyResult]:
    """Return the current assignment, if one is given, and a result for each strategy."""
    if options.standbys:
        raise InputError("--standby-replicas is for streams groups")
    before = _with_weights_and_current(group, options.weights, options.current)
    after = _with_changed_members(before, options.removed, options.added)
    current = [] if before.current is None else [assignment_result(NOW, before, before.current)]
    strategies = dict.fromkeys(options.strategies)  # each once
    return [*current, *(strategy_result(strategy, before, after) for strategy in strategies)]


def _streams_results(group: StreamsSpec, options: AssignOptions) -> list[StrategyResult]:
    """Return a result for each number of standby replicas. The assignor is Kafka's own."""
    removed = [_member_named(name, group.members) for name in options.removed]
    return streams_outcomes(group, removed, options.added, options.standbys)


def _group(options: AssignOptions) -> GroupSpec | StreamsSpec:
    """Return the group that the options describe.

    Raises InputError, or UsageError unless exactly one source is given, with all its options.
    """
    sources = [
        (options.topics, options.members),
        (options.source,),
        (options.group_id, options.client_config),
    ]
    given_sources = [source for source in sources if any(option is not None for option in source)]
    if len(given_sources) != 1 or None in given_sources[0]:
        raise click.UsageError(_SOURCES)
    if options.topics and options.members:
        return GroupSpec(options.topics, parse_members(options.members, options.topics))
    if options.source is not None:
        return read_group(options.source)
    assert options.group_id is not None
    assert options.client_config is not None
    return _from_group(options.group_id, options.client_config, options.prefix, options.timeout_ms)


def _from_group(
    group_id: str, client_config: ClientConfig, prefix: str, timeout_ms: int
) -> GroupSpec | StreamsSpec:
    """Return a group of a coordinator in its present state. Raises InputError if the group is not there."""
    with connected(CoordinatorCluster, client_config, prefix, timeout_ms) as cluster:
        descriptions = describe_groups(cluster.requests, {group_id: None}, with_offsets=True)
        if group_id not in descriptions.groups:
            raise InputError(*descriptions.refusals())
        described = descriptions.groups[group_id]
        if described.group_type == STREAMS:
            return streams_spec(described)
        topics = cluster.log.topics.difference(cluster.layout.topics)  # without the coordinator's own topics
        existing = cluster.log.existing(subscribed_topics(described, topics))
        partition_counts = {topic: len(partitions) for topic, partitions in existing.items()}
        return live_group(
            described, partition_counts, describe_partitions(cluster.log, descriptions)[group_id]
        )


def _with_weights_and_current(group: GroupSpec, weights: Path | None, current: str | None) -> GroupSpec:
    """Return the group with weights from a file, and with `current`, which is a file or a strategy's name."""
    if weights is not None:
        group = replace(group, weights=read_weights(weights))
    if current in STRATEGIES:
        # The assignment after the last rebalance, if the members held nothing before the first.
        return replace(group, current=rounds(current, group, {})[-1])
    return group if current is None else replace(group, current=read_assignment(Path(current)))


def _with_changed_members(group: GroupSpec, removed: Sequence[str], added: Sequence[str]) -> GroupSpec:
    """Return the group with members added, and then others removed. Raises InputError."""
    for text in added:
        for member_id, member in parse_members(text, group.topics).items():
            group = group.with_member(member_id, member)
    for name in removed:
        instances = {member_id: member.instance_id for member_id, member in group.members.items()}
        group = group.without(_member_named(name, group.members, instances))
    return group


def _member_named(
    name: str,
    members: Collection[MemberId],
    instances: Mapping[MemberId, str | None] = MappingProxyType({}),
) -> MemberId:
    """Return the member with this id, or else this instance id, or else this displayed name.

    Raises InputError if none of them names exactly one member.
    """
    names = Names(members)
    names_of_member: Sequence[Callable[[MemberId], str | None]] = (str, instances.get, names.of)
    for name_of in names_of_member:
        matches = [member_id for member_id in members if name_of(member_id) == name]
        if len(matches) == 1:
            return matches[0]
    raise InputError(f"no member is called {name}; there are {', '.join(map(names.of, members))}")


def _show(results: Sequence[StrategyResult], names: Names, output: str, *, summary: bool) -> None:
    if output == "json":
        show_json(results)
        return
    blocks = [] if summary else [outcome_text(result, names) for result in results]
    if summary or len(results) > 1:
        blocks.append(summary_text(results))
    show(visible_text(blocks, "\n\n"))
