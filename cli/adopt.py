"""`group-coordinator adopt`: moves offsets of groups between two coordinators of one cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from kafka_why.cli.groups.common import output_option
from kafka_why.cli.output import configure_logs, show, show_json, show_stderr
from kafka_why.cli.parameters import SERVERS, WholeNumber, client_config_of
from kafka_why.wording import Column, render_table
from operations.adopt.groups_at import AdoptDecision, AdoptError, AdoptPlan, GroupAdmin, plan

_FILE = click.Path(path_type=Path, dir_okay=False)
_COLUMNS = (Column("GROUP", 20), Column("STATE", 10), Column("PARTITIONS", 10), Column("OUTCOME", 10))


@click.command()
@click.option("--from", "source", type=SERVERS, help="The coordinator that has the groups.")
@click.option("--from-config", type=_FILE, metavar="FILE", help="Kafka's client settings for --from.")
@click.option("--to", "target", type=SERVERS, help="The coordinator that gets them, on the same cluster.")
@click.option("--to-config", type=_FILE, metavar="FILE", help="Kafka's client settings for --to.")
@click.option("--group", "named", multiple=True, metavar="GROUP", help="A group; repeatable. Default: all.")
@click.option("--execute", is_flag=True, help="Commit the offsets. Without it the command only shows them.")
@click.option("--overwrite", is_flag=True, help="Replace offsets that differ at --to.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=WholeNumber(1),
    metavar="MS",
    default=60_000,
    show_default=True,
    help="The time to wait for each answer of a coordinator, in milliseconds.",
)
@output_option
def adopt(
    source: str | None,
    from_config: Path | None,
    target: str | None,
    to_config: Path | None,
    named: Sequence[str],
    execute: bool,
    overwrite: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Move the offsets of groups from one coordinator to another of the same cluster.

    One of the two is a gateway, the other one the brokers themselves. So the command gives groups back, too:
    with --from and --to exchanged. The groups must have no members. They stay at --from as they are.
    """
    configure_logs()
    from_client = client_config_of(source, from_config, ("--from", "--from-config"))
    to_client = client_config_of(target, to_config, ("--to", "--to-config"))
    if from_client is None or to_client is None:
        raise click.UsageError(
            "takes --from and --to, or --from-config and --to-config with bootstrap.servers in the files"
        )
    try:
        from_admin, to_admin = (GroupAdmin(one, timeout_ms / 1000) for one in (from_client, to_client))
        _check_same_cluster(from_admin, to_admin)
        plans = _plans(from_admin, to_admin, list(dict.fromkeys(named)), overwrite=overwrite)
        done = [_executed(plan, from_admin, to_admin) for plan in plans] if execute else plans
    except AdoptError as error:
        raise click.ClickException(str(error)) from error
    _show(done, output)
    if not execute and any(plan.outcome is AdoptDecision.MOVE for plan in plans):
        show_stderr("nothing is changed: --execute moves the offsets")
    if execute and any(plan.outcome is AdoptDecision.REFUSED for plan in done):
        raise click.exceptions.Exit(1)


def _check_same_cluster(from_admin: GroupAdmin, to_admin: GroupAdmin) -> None:
    """Raise AdoptError if the clusters differ. An offset is a position in the topics of one cluster."""
    ids = from_admin.cluster_id(), to_admin.cluster_id()
    if ids[0] != ids[1]:
        raise AdoptError(f"--from is of cluster {ids[0]}, --to of {ids[1]}: its topics have other offsets")


def _plans(
    from_admin: GroupAdmin, to_admin: GroupAdmin, named: Sequence[str], *, overwrite: bool
) -> list[AdoptPlan]:
    groups = from_admin.read(named or from_admin.ids())
    missing = [group_id for group_id in named if group_id not in groups]
    if missing:
        raise AdoptError(f"--from has no group {', '.join(missing)}")
    others = to_admin.read(groups)
    return [plan(groups[name], others.get(name), overwrite=overwrite) for name in sorted(groups)]


def _executed(planned: AdoptPlan, from_admin: GroupAdmin, to_admin: GroupAdmin) -> AdoptPlan:
    """Move a group. Return its plan with the outcome."""
    if planned.outcome is not AdoptDecision.MOVE:
        return planned
    try:
        refusal = _move(planned, from_admin, to_admin)
    except AdoptError as error:
        # Refuses only this group, because the output must have all groups that were moved.
        refusal = f"{error}: check it, and start again"
    outcome = AdoptDecision.REFUSED if refusal else AdoptDecision.MOVED
    return replace(planned, outcome=outcome, reason=refusal)


def _move(planned: AdoptPlan, from_admin: GroupAdmin, to_admin: GroupAdmin) -> str:
    """Commit the offsets, and read both coordinators again. Return why the group is refused, or "".

    Raises AdoptError. The offsets may then be committed at --to.
    """
    name = planned.group.group_id
    errors = to_admin.commit(name, planned.offsets)
    if errors:
        (topic, number), error = min(errors.items())
        return f"{len(errors)} partitions, first {topic}-{number}: {error}"
    group, moved = from_admin.read([name]).get(name), to_admin.read([name]).get(name)
    for side in (group, moved):
        if side is not None and side.error:
            raise AdoptError(side.error)
    if group is None or group.members or group.offsets != planned.group.offsets:
        return "changed at --from meanwhile: stop its members, and start again"
    if moved is None or any(moved.offsets.get(partition) != at for partition, at in planned.offsets.items()):
        return "changed at --to meanwhile: compare, and start again"
    return ""


def _show(plans: Sequence[AdoptPlan], output: str) -> None:
    rows = [
        {
            "group": plan.group.group_id,
            "state": plan.group.state,
            "partitions": len(plan.offsets),
            "outcome": plan.outcome,
            "reason": plan.reason,
        }
        for plan in plans
    ]
    if output == "json":
        show_json(rows)
        return
    cells = [
        (*row, f"{outcome}: {reason}" if reason else outcome)
        for *row, outcome, reason in (tuple(row.values()) for row in rows)
    ]
    show(render_table(_COLUMNS, cells))
