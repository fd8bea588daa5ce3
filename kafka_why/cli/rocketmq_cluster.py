"""`--namesrv`: a RocketMQ cluster in place of Kafka's brokers, for `why` and `page`."""

import asyncio
import functools
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec.structs import replace

from kafka_why.cli.output import (
    reading_progress,
    show,
    show_json,
    show_line,
    show_stderr,
)
from kafka_why.cli.parameters import FILE, Command, link, with_options
from kafka_why.connections.rocketmq import (
    ACCESS_KEY,
    SECRET_KEY,
    RocketMqServers,
    parse_name_servers,
)
from kafka_why.lifetimes import OutageWarning
from kafka_why.topic_reader import ClientError
from kafka_why.why.rocketmq.model import Report
from kafka_why.why.rocketmq.polled.changes import change_line, changes, poll_report_text, symptom_changes
from kafka_why.why.rocketmq.polled.model import GroupPoll, PollReport
from kafka_why.why.rocketmq.polled.symptoms import STANDS_MS, earlier_poll, poll_report
from kafka_why.why.rocketmq.text import report_text
from kafka_why.wording import Clock, VisibleText, visible, visible_text

if TYPE_CHECKING:
    from kafka_why.why.rocketmq.polled.cluster import ClusterPoller

FOLLOW_INTERVAL_S = 5.0
_OPTIONS = ("namesrv", "rocketmq_acl", "rocketmq_tls")
_KAFKA_PARAMETERS = frozenset(("bootstrap_servers", "properties"))
"""The parameters of the Kafka cluster that has the history."""


def namesrv_options(
    polled_command: Callable[..., None], polled_parameters: tuple[str, ...]
) -> Callable[[Command], Command]:
    """Add `--namesrv`, which names the servers of a RocketMQ cluster, and the options for its credentials.

    With `--namesrv`, `polled_command` is called in place of the command. It gets `servers` and the command's
    `polled_parameters`. If the command line names a Kafka cluster, too, the command itself gets `servers`.
    Without `--namesrv`, the command's `servers` is None.
    """
    options = (
        click.option(
            "--namesrv",
            metavar="HOST:PORT;...",
            envvar="NAMESRV_ADDR",
            show_envvar=True,
            help="Name servers of a RocketMQ cluster, which is polled; with --bootstrap-servers beside the "
            "history there.",
        ),
        click.option(
            "--rocketmq-acl",
            type=FILE,
            metavar="FILE",
            help=f"Lines accessKey and secretKey, as mqadmin's tools.yml. Default: {ACCESS_KEY} and "
            f"{SECRET_KEY} of the environment.",
        ),
        click.option(
            "--rocketmq-tls", type=FILE, metavar="FILE", help="Use TLS, as in RocketMQ's tls.config.file."
        ),
    )

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            rocketmq_values = {name: given.pop(name) for name in _OPTIONS}
            on_command_line = _on_command_line()
            history_options = [
                option
                for name, option in on_command_line.items()
                if name not in (*_OPTIONS, *polled_parameters)
            ]
            # The environment's NAMESRV_ADDR counts only for a command line without other sources.
            is_overridden = bool(history_options) and "namesrv" not in on_command_line
            if rocketmq_values["namesrv"] is None or is_overridden:
                command(servers=None, **given)
                return
            if not _KAFKA_PARAMETERS.isdisjoint(on_command_line):
                command(servers=_servers(**rocketmq_values), **given)
                return
            if history_options:
                raise click.UsageError(f"--namesrv does not go with {', '.join(history_options)}")
            polled_values = {name: given[name] for name in polled_parameters}
            polled_command(servers=_servers(**rocketmq_values), **polled_values)

        return with_options(run, *options)

    return decorated


def _on_command_line() -> dict[str, str]:
    """Return the parameters whose values are from the command line, each with its option's name."""
    context = click.get_current_context()
    return {
        param.name: param.opts[0]
        for param in context.command.params
        if param.name and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    }


def _servers(namesrv: str, rocketmq_acl: Path | None, rocketmq_tls: Path | None) -> RocketMqServers:
    try:
        return RocketMqServers.read(parse_name_servers(namesrv), rocketmq_acl, rocketmq_tls, os.environ)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def explain_polled(
    *, servers: RocketMqServers, group_id: str | None, follow: bool, output: str, page_url: str | None
) -> None:
    """Explain a group of a RocketMQ cluster by two polls. With `follow`, continue to poll until Ctrl-C."""
    if group_id is None:
        raise click.UsageError("Missing argument 'GROUP'.")
    expected_ends = (KeyboardInterrupt, asyncio.CancelledError) if follow else ()
    with suppress(*expected_ends):
        asyncio.run(_explain_by_polls(servers, group_id, output, follow=follow))
    if page_url is not None and output == "text":
        show(visible_text(["", link(page_url, group_id)]))


def with_polls(report: Report, servers: RocketMqServers) -> Report:
    """Add to `report` what two polls of the group's cluster show."""

    async def poll() -> PollReport:
        from kafka_why.why.rocketmq.polled.cluster import ClusterPoller  # slow, so only if needed

        async with ClusterPoller(servers) as cluster:
            polled, _ = await _poll_twice(cluster, report.group_id)
            return polled

    try:
        return replace(report, polled=asyncio.run(poll()))
    except ClientError as error:
        return replace(report, notes=[*report.notes, f"the cluster cannot be polled: {error}"])


def history_and_polls_text(report: Report, clock: Clock) -> VisibleText:
    """Return a report on a group's history as text, followed by its polls."""
    text = report_text(report, clock)
    if report.polled is None:
        return text
    return visible_text([text, "The cluster now", poll_report_text(report.polled, clock)], "\n\n")


async def _explain_by_polls(servers: RocketMqServers, group_id: str, output: str, *, follow: bool) -> None:
    from kafka_why.why.rocketmq.polled.cluster import ClusterPoller  # slow, so only if needed

    async with ClusterPoller(servers) as cluster:
        report, polls = await _poll_twice(cluster, group_id)
        if output == "text":
            show(poll_report_text(report, Clock()))
        elif follow:
            show_line({"report": report})
        else:
            show_json(report)
        if follow:
            show_stderr(
                f"Polling every {FOLLOW_INTERVAL_S:.0f} s; what comes and goes in between is not seen."
            )
            await _follow(cluster, report, polls, output)


async def _poll_twice(cluster: "ClusterPoller", group_id: str) -> tuple[PollReport, list[GroupPoll]]:
    """Poll a group twice, STANDS_MS apart. Return the report and the polls."""
    began_s = time.monotonic()
    first = await cluster.poll(group_id, reading_progress("answers"))
    show_stderr(f"Polling the group again after {STANDS_MS // 1000} s.")
    await asyncio.sleep(began_s + STANDS_MS / 1000 - time.monotonic())
    second = await cluster.poll(group_id, reading_progress("answers"))
    return poll_report(second, first), [first, second]


async def _follow(cluster: "ClusterPoller", report: PollReport, polls: list[GroupPoll], output: str) -> None:
    """Poll a group until SIGTERM or Ctrl-C. Print its changes, and the symptoms that begin or end."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    warning = OutageWarning("polling the group")
    recent_polls = deque(polls, maxlen=4)  # back to the poll that `earlier_poll` returns
    while True:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        try:
            poll = await cluster.poll(report.group_id)
        except ClientError as error:
            warning.failed(error)
            continue
        warning.worked()
        all_changes = [*changes(recent_polls[-1], poll)]
        recent_polls.append(poll)
        last_report, report = report, poll_report(poll, earlier_poll(recent_polls))
        all_changes += symptom_changes(last_report.symptoms, report.symptoms, report.group_id, poll.at_ms)
        for change in all_changes:
            if output == "text":
                show(visible(change_line(change)))
            else:
                show_line({"entry": change})
