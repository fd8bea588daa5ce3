"""`group-coordinator adopt`: moves offsets of groups between two coordinators of one cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from kafka_why.cli.groups.common import output_option
from kafka_why.cli.output import show, show_json, show_stderr
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
@click.option(
    "--group", "group_ids", multiple=True, metavar="GROUP", help="A group; repeatable. Default: all."
)
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
    group_ids: Sequence[str],
    execute: bool,
    overwrite: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Move the offsets of groups from one coordinator to another of the same cluster.

    One of the two is a gateway, the other one the brokers themselves. To give groups back, exchange --from
    and --to. The groups must have no members. The command does not change them at --from.
    """
    from_client = client_config_of(source, from_config, ("--from", "--from-config"))
    to_client = client_config_of(target, to_config, ("--to", "--to-config"))
    if from_client is None or to_client is None:
        raise click.UsageError(
            "takes --from and --to, or --from-config and --to-config with bootstrap.servers in the files"
        )
    from_admin = GroupAdmin(from_client, timeout_ms / 1000)
    to_admin = GroupAdmin(to_client, timeout_ms / 1000)
    _check_same_cluster(from_admin, to_admin)
    plans = _make_plans(from_admin, to_admin, list(dict.fromkeys(group_ids)), overwrite=overwrite)
    results = [_execute(plan, from_admin, to_admin) for plan in plans] if execute else plans
    _show(results, output)
    if not execute and any(plan.outcome is AdoptDecision.MOVE for plan in plans):
        show_stderr("nothing is changed: --execute moves the offsets")
    if execute and any(plan.outcome is AdoptDecision.REFUSED for plan in results):
        raise click.exceptions.Exit(1)


def _check_same_cluster(from_admin: GroupAdmin, to_admin: GroupAdmin) -> None:
    """Raise AdoptError if the clusters differ, because an offset has a meaning in one cluster only."""
    ids = from_admin.cluster_id(), to_admin.cluster_id()
    if ids[0] != ids[1]:
        raise AdoptError(f"--from is of cluster {ids[0]}, --to of {ids[1]}: their topics have other offsets")


def _make_plans(
    from_admin: GroupAdmin, to_admin: GroupAdmin, group_ids: Sequence[str], *, overwrite: bool
) -> list[AdoptPlan]:
    """Return the plans of these groups, or of all groups at --from if `group_ids` is empty."""
    from_groups = from_admin.read(group_ids or from_admin.ids())
    missing = [group_id for group_id in group_ids if group_id not in from_groups]
    if missing:
        raise AdoptError(f"--from has no group {', '.join(missing)}")
    to_groups = to_admin.read(from_groups)
    return [plan(from_groups[name], to_groups.get(name), overwrite=overwrite) for name in sorted(from_groups)]


def _execute(planned: AdoptPlan, from_admin: GroupAdmin, to_admin: GroupAdmin) -> AdoptPlan:
    """Move the group if that is its plan. Return the plan with the outcome."""
    if planned.outcome is not AdoptDecision.MOVE:
        return planned
    try:
        refusal = _move(planned, from_admin, to_admin)
    except AdoptError as error:
        # Refuse only this group and continue, so that the output lists the groups that were moved.
        refusal = f"{error}: check it, and start again"
    outcome = AdoptDecision.REFUSED if refusal else AdoptDecision.MOVED
    return replace(planned, outcome=outcome, reason=refusal)


def _move(planned: AdoptPlan, from_admin: GroupAdmin, to_admin: GroupAdmin) -> str:
    """Commit the offsets at --to, and check that neither coordinator has changed the group meanwhile.

    Return why the group is refused, or "" if it is moved. Raises AdoptError, perhaps after the commit.
    """
    name = planned.group.group_id
    errors = to_admin.commit(name, planned.offsets)
    if errors:
        (topic, partition), error = min(errors.items())
        return f"{len(errors)} partitions, first {topic}-{partition}: {error}"
    from_group, to_group = from_admin.read([name]).get(name), to_admin.read([name]).get(name)
    for group in (from_group, to_group):
        if group is not None and group.error:
            raise AdoptError(group.error)
    if from_group is None or from_group.members or from_group.offsets != planned.group.offsets:
        return "changed at --from meanwhile: stop its members, and start again"
    if to_group is None or any(to_group.offsets.get(p) != offset for p, offset in planned.offsets.items()):
        return "changed at --to meanwhile: compare, and start again"
    return ""


def _show(plans: Sequence[AdoptPlan], output: str) -> None:
    if output == "json":
        show_json(
            [
                {
                    "group": plan.group.group_id,
                    "state": plan.group.state,
                    "partitions": len(plan.offsets),
                    "outcome": plan.outcome,
                    "reason": plan.reason,
                }
                for plan in plans
            ]
        )
    else:
        cells = [
            (
                plan.group.group_id,
                plan.group.state,
                len(plan.offsets),
                f"{plan.outcome}: {plan.reason}" if plan.reason else plan.outcome,
            )
            for plan in plans
        ]
        show(render_table(_COLUMNS, cells))
