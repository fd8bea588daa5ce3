"""`group-coordinator assign`: the assignment under another assignor or set of members, and its moves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from kafka_why.cli.output import configure_logs, show, show_json
from kafka_why.cli.parameters import ParsedOption, WholeNumber, as_object, cluster_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import STREAMS
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.groups.gather import describe_groups, describe_partitions
from kafka_why.wording import Names, visible_text
from operations.assign.compare import (
    CLIENT_STRATEGIES,
    KNOWN,
    StrategyResult,
    check_strategy,
    current_result,
    live_group,
    outcome_text,
    outcomes,
    rounds,
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
    members: str | None
    source: Path | None
    group_id: str | None
    client_config: ClientConfig | None
    prefix: str
    timeout_ms: int
    strategies: Sequence[str]
    current: str | None
    gone: Sequence[str]  # members to remove
    come: Sequence[str]  # members to add
    standbys: Sequence[int]
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
@cluster_options(required=False)
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@timeout_option
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    default=CLIENT_STRATEGIES,
    type=ParsedOption("NAME", check_strategy),
    metavar="NAME",
    help=f"A strategy; repeatable; default: the strategies of Kafka's clients. Known: {', '.join(KNOWN)}.",
)
@click.option(
    "--current",
    metavar="FILE|NAME",
    help="The current assignment: a JSON file, or the strategy that computes it.",
)
@click.option("--without", "gone", multiple=True, metavar="MEMBER", help="A member to remove; repeatable.")
@click.option(
    "--with", "come", multiple=True, metavar="ID[=TOPIC+TOPIC]", help="A member to add; repeatable."
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
    configure_logs()
    try:
        group = _group(options)
        answer = (
            _streams_results(group, options)
            if isinstance(group, StreamsSpec)
            else _group_results(group, options)
        )
    except InputError as error:
        raise click.ClickException(str(error)) from error
    names = Names([share.member_id for outcome in answer for share in outcome.shares])
    _show(answer, names, options.output, summary=options.summary)


def _group_results(group: GroupSpec, options: AssignOptions) -> list[StrategyResult]:
    if options.standbys:
        raise InputError("--standby-replicas is for streams groups")
    before = _completed(group, options.current, options.weights)
    after = _changed(before, options.gone, options.come)
    answer = outcomes(before, after, dict.fromkeys(options.strategies))
    if before.current is not None:
        answer.insert(0, current_result(before, before.current))
    return answer


def _streams_results(group: StreamsSpec, options: AssignOptions) -> list[StrategyResult]:
    """Return the results for a streams group. The assignor is Kafka's own."""
    gone = [_member_named(name, group.members, {}) for name in options.gone]
    return streams_outcomes(group, gone, options.come, options.standbys)


def _group(options: AssignOptions) -> GroupSpec | StreamsSpec:
    """Return the group that the options describe.

    Raises InputError, or UsageError unless there is one source.
    """
    ways = [(options.topics, options.members), (options.source,), (options.group_id, options.client_config)]
    chosen = [way for way in ways if any(given is not None for given in way)]
    if len(chosen) != 1 or None in chosen[0]:
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
    with connected(CoordinatorCluster, client_config, prefix, timeout_ms) as cluster:
        found = describe_groups(cluster.requests, {group_id: None}, with_offsets=True)
        if group_id not in found.groups:
            raise InputError(*found.refusals())
        described = found.groups[group_id]
        if described.group_type == STREAMS:
            return streams_spec(described)
        topics = cluster.log.topics().difference(cluster.layout.topics)
        there = cluster.log.existing(subscribed_topics(described, topics))
        counts = {topic: len(partitions) for topic, partitions in there.items()}
        return live_group(described, counts, describe_partitions(cluster.log, found)[group_id])


def _completed(group: GroupSpec, current: str | None, weights: Path | None) -> GroupSpec:
    """Return the group with the user's weights and current assignment."""
    if weights is not None:
        group = replace(group, weights=read_weights(weights))
    if current in KNOWN:
        return replace(group, current=rounds(current, group, {})[-1])
    return group if current is None else replace(group, current=read_assignment(Path(current)))


def _changed(group: GroupSpec, gone: Sequence[str], come: Sequence[str]) -> GroupSpec:
    """Return the group after `come` were added and `gone` removed. Raises InputError."""
    for text in come:
        for member_id, member in parse_members(text, group.topics).items():
            group = group.with_member(member_id, member)
    for name in gone:
        instances = {member_id: member.instance_id for member_id, member in group.members.items()}
        group = group.without(_member_named(name, group.members, instances))
    return group


def _member_named(
    name: str, members: Collection[MemberId], instances: Mapping[MemberId, str | None]
) -> MemberId:
    """Return the member with this id, instance id or displayed name. Raises InputError."""
    names = Names(members)
    ways: Sequence[Callable[[MemberId], str | None]] = (str, instances.get, names.of)
    for way in ways:
        found = [member_id for member_id in members if way(member_id) == name]
        if len(found) == 1:
            return found[0]
    raise InputError(f"no member is called {name}; there are {', '.join(map(names.of, members))}")


def _show(answer: Sequence[StrategyResult], names: Names, output: str, *, summary: bool) -> None:
    if output == "json":
        show_json(answer)
        return
    blocks = [] if summary else [outcome_text(outcome, names) for outcome in answer]
    if summary or len(answer) > 1:
        blocks.append(summary_text(answer))
    show(visible_text(blocks, "\n\n"))
