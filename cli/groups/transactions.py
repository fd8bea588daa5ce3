"""`groups abort-pending`: drops offsets that are pending in a transaction."""

import time
from collections.abc import Sequence

import click

from cli.groups.coordinator import CoordinatorCluster
from kafka_why.cli.groups.common import (
    connection_options,
    group_options,
    output_option,
    show_table,
)
from kafka_why.cli.output import show_json, show_stderr
from kafka_why.cli.parameters import INT64
from kafka_why.groups.error_text import error_name, error_text
from kafka_why.groups.render import pending_table


@click.command("abort-pending")
@connection_options
@group_options
@click.option(
    "--transactional-id",
    "transactional_ids",
    multiple=True,
    help="Only of this transactional id; repeatable.",
)
@click.option("--producer-id", "producer_ids", type=INT64, multiple=True, help="Only of this producer id.")
@click.option("--execute", is_flag=True, help="Drop them. Without it they are only shown.")
@output_option
def abort_pending(
    cluster: CoordinatorCluster,
    named: Sequence[str],
    all_groups: bool,
    transactional_ids: Sequence[str],
    producer_ids: Sequence[int],
    execute: bool,
    output: str,
) -> None:
    """Show offsets that are pending in transactions, and with --execute drop them.

    Drop only offsets of a transaction that the brokers have aborted, or will never end (see
    `kafka-transactions describe` and `abort`). If the brokers commit it, its records are visible and its
    offsets are lost, so its input is processed twice.
    """
    chosen = [
        one
        for one in cluster.pending_transactions()
        if (all_groups or one.group_id in named)
        and (not transactional_ids or one.transactional_id in transactional_ids)
        and (not producer_ids or one.producer_id in producer_ids)
    ]
    errors = (
        [error_name(code) for code in cluster.requests.abort_pending(chosen)] if execute and chosen else []
    )
    if output == "json":
        dropped = errors or [None] * len(chosen)
        show_json(
            [
                {
                    "group": one.group_id,
                    "transactional_id": one.transactional_id,
                    "producer_id": one.producer_id,
                    "producer_epoch": one.producer_epoch,
                    "partitions": one.partitions,
                    "since_ms": one.at_ms,
                    "dropped": execute and error is None,
                    "error": error,
                }
                for one, error in zip(chosen, dropped, strict=True)
            ]
        )
        return
    if not chosen:
        show_stderr("No offset is pending in a transaction.")
        return
    show_table(pending_table(chosen, round(time.time() * 1000)))
    if not execute:
        show_stderr("Nothing was dropped: --execute is not given.")
    for one, error in zip(chosen, errors, strict=False):
        if error is not None:
            show_stderr(
                f"Error: Offsets of group '{one.group_id}' in transaction '{one.transactional_id}' were not "
                f"dropped due to: {error_text(error)}"
            )
