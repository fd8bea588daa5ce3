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
    configure_logs,
    reading_progress,
    show,
    show_json,
    show_line,
    show_stderr,
)
from kafka_why.cli.parameters import Command, link, with_options
from kafka_why.connections.rocketmq import (
    ACCESS_KEY,
    SECRET_KEY,
    RocketMqServers,
    parse_name_servers,
)
from kafka_why.lifetimes import OutageWarning
from kafka_why.topic_reader import ClientError
from kafka_why.why.history import HistoryUnavailable
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
_HISTORY = frozenset(("bootstrap_servers", "properties"))
"""The parameters of the cluster that has the history."""
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def namesrv_options(instead: Callable[..., None], also: tuple[str, ...]) -> Callable[[Command], Command]:
    """Add `--namesrv` and its credentials.

    With `--namesrv`, `instead` is called in place of the command. It gets `servers`, and the command's
    parameters in `also`. If the command line also names the cluster with the history, the command itself is
    called, with `servers`.
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
            type=_FILE,
            metavar="FILE",
            help=f"Lines accessKey and secretKey, as mqadmin's tools.yml. Default: {ACCESS_KEY} and "
            f"{SECRET_KEY} of the environment.",
        ),
        click.option(
            "--rocketmq-tls", type=_FILE, metavar="FILE", help="Use TLS, as in RocketMQ's tls.config.file."
        ),
    )

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            own = {name: given.pop(name) for name in _OPTIONS}
            on_command_line = _on_command_line()
            others = [option for name, option in on_command_line.items() if name not in (*_OPTIONS, *also)]
            if own["namesrv"] is None or (others and "namesrv" not in on_command_line):
                command(servers=None, **given)
                return
            if not _HISTORY.isdisjoint(on_command_line):
                command(servers=_servers(**own), **given)
                return
            if others:
                raise click.UsageError(f"--namesrv does not go with {', '.join(others)}")
            instead(servers=_servers(**own), **{name: given[name] for name in also})

        return with_options(run, *options)

    return decorated


def _on_command_line() -> dict[str, str]:
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
    """Explain a group of a RocketMQ cluster by two polls. With `follow`, go on polling until Ctrl-C."""
    configure_logs()
    if group_id is None:
        raise click.UsageError("Missing argument 'GROUP'.")
    is_end = (KeyboardInterrupt, asyncio.CancelledError) if follow else ()
    try:
        with suppress(*is_end):
            asyncio.run(_explain(servers, group_id, output, follow=follow))
    except (ClientError, HistoryUnavailable) as error:
        raise click.ClickException(str(error)) from error
    if page_url is not None and output == "text":
        show(visible_text(["", link(page_url, group_id)]))


def with_polls(report: Report, servers: RocketMqServers) -> Report:
    """Add to `report` what two polls of the group's cluster show."""

    async def poll() -> PollReport:
        from kafka_why.why.rocketmq.polled.cluster import ClusterPoller  # other sources do without

        async with ClusterPoller(servers) as cluster:
            polled, _ = await _poll_twice(cluster, report.group_id)
            return polled

    try:
        return replace(report, polled=asyncio.run(poll()))
    except (ClientError, HistoryUnavailable) as error:
        return replace(report, notes=[*report.notes, f"the cluster cannot be polled: {error}"])


def beside_polls_text(report: Report, clock: Clock) -> VisibleText:
    """Return a report on a group's history as text, followed by its polls."""
    text = report_text(report, clock)
    if report.polled is None:
        return text
    return visible_text([text, "The cluster now", poll_report_text(report.polled, clock)], "\n\n")


async def _explain(servers: RocketMqServers, group_id: str, output: str, *, follow: bool) -> None:
    from kafka_why.why.rocketmq.polled.cluster import ClusterPoller  # other sources do without

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
    began_s = time.monotonic()
    before = await cluster.poll(group_id, reading_progress("answers"))
    show_stderr(f"Polling the group again after {STANDS_MS // 1000} s.")
    await asyncio.sleep(began_s + STANDS_MS / 1000 - time.monotonic())
    poll = await cluster.poll(group_id, reading_progress("answers"))
    return poll_report(poll, before), [before, poll]


async def _follow(cluster: "ClusterPoller", report: PollReport, polls: list[GroupPoll], output: str) -> None:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    warning, known = OutageWarning("polling the group"), deque(polls, maxlen=4)
    while True:
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        try:
            poll = await cluster.poll(report.group_id)
        except (ClientError, HistoryUnavailable) as error:
            # Goes on when the cluster is back.
            warning.failed(error)
            continue
        warning.worked()
        found = [*changes(known[-1], poll)]
        known.append(poll)
        before, report = report, poll_report(poll, earlier_poll(known))
        found += symptom_changes(before.symptoms, report.symptoms, report.group_id, poll.at_ms)
        for change in found:
            if output == "text":
                show(visible(change_line(change)))
            else:
                show_line({"entry": change})
