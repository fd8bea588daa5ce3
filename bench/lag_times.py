"""What is found of real consumers that hurt, and after how long: `python -m bench.lag_times`, 16 minutes.

Each story of `bench.lag_play` is played twice beside one real broker: at a coordinator, and at the broker's
own coordinator, which an observer watches. Nothing is made shorter. Once a second the page, the metrics, the
receiver of `notify`, and Prometheus with the alerts of `deploy/` (if it is on this machine) are looked at. It
prints the tables of docs/lag.md: the seconds from the turn until each of them has what is wrong, and the
errors of the lag in time against when the records came.
"""

import json
import shutil
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from bench.lag_play import STORIES, Came, Played, playing
from bench.page_story import START_S, observing
from cli.processes.child import Child
from insight.notify.messages import name_of
from insight.page.findings import Kind
from streaming.observing.options import DEFAULT_PREFIX
from tests.harness.ports import free_port
from tests.harness.webhook import Webhook

BEFORE_TURN_S = 60
AFTER_TURN_S = 780
LOOK_S = 1.0
SCRAPE_S = 10
FOUND = {
    "group_coordinator_stuck_partitions": name_of(Kind.STUCK),
    "group_coordinator_partitions_falling_behind": name_of(Kind.FALLING_BEHIND),
    "group_coordinator_partitions_without_owner": name_of(Kind.NO_OWNER),
}
ALERTS = {
    "PartitionsStuck": name_of(Kind.STUCK),
    "FallingBehind": name_of(Kind.FALLING_BEHIND),
    "PartitionsWithoutOwner": name_of(Kind.NO_OWNER),
}
KINDS = (*FOUND.values(), name_of(Kind.REBALANCING), name_of(Kind.OFTEN))
PAGE, METRICS, ALERT, MESSAGE = WHERE = ("page", "metrics", "alert", "message")
DEPLOY = Path(__file__).parents[1] / "deploy"


@dataclass
class Seen:
    """When something was first found, by group, place and kind, and the errors of the lags in time."""

    first_s: dict[tuple[str, str, str], float] = field(default_factory=dict)
    errors_ms: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def at(self, group_id: str, where: str, kind: str) -> None:
        self.first_s.setdefault((group_id, where, kind), time.monotonic())


@dataclass(frozen=True)
class Side:
    """A coordinator with what reads of it. `servers` is where consumers connect."""

    name: str
    servers: str
    page: str
    metrics: str
    webhook: Webhook


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        found: bytes = response.read()
    return found


def _child(stack: ExitStack, folder: Path, name: str, *arguments: str) -> Child:
    child = Child(name, arguments, folder / f"{name}.log")
    stack.callback(child.stop)
    return child


def _notify(stack: ExitStack, folder: Path, name: str, broker: str, *arguments: str) -> Webhook:
    webhook = stack.enter_context(Webhook())
    child = _child(
        stack,
        folder,
        f"notify-{name}",
        *("notify", "--bootstrap-servers", broker, "--url", webhook.url(), *arguments),
        *("--data-dir", str(folder / f"notify-{name}")),
    )
    child.wait_for_line(lambda line: line.startswith("ready:"), START_S)
    return webhook


def sides(stack: ExitStack, folder: Path) -> tuple[str, list[Side]]:
    """Start all. Returns the broker's address, and the two coordinators."""
    run = _child(stack, folder, "run", "run", "--json", "--data-dir", str(folder / "data"))
    ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_S))
    broker = ready["broker"]
    own = Side(
        "own", ready["gateway"], ready["page"], ready["metrics"], _notify(stack, folder, "own", broker)
    )
    port = free_port()
    address = observing(stack, folder, broker, "--metrics-port", str(port))
    observed = Side(
        "observed",
        broker,
        address,
        f"http://127.0.0.1:{port}/metrics",
        _notify(stack, folder, "observed", broker, "--prefix", DEFAULT_PREFIX),
    )
    return broker, [own, observed]


def prometheus(stack: ExitStack, folder: Path, targets: list[Side]) -> str | None:
    """Start Prometheus with our alerts. Returns its address, None if it is not on this machine."""
    program = shutil.which("prometheus")
    if program is None:
        return None
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["rule_files"] = [str(DEPLOY / "alerts.yml")]
    (job,) = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [side.metrics.split("/")[2] for side in targets]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    child = Child(
        "prometheus",
        [
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        folder / "prometheus.log",
        Path(program),
    )
    stack.callback(child.stop)
    return f"http://127.0.0.1:{port}/"


def look(side: Side, came: Came, seen: Seen) -> None:
    """Look at the page, the metrics and the receiver of messages once."""
    for line in json.loads(_get(f"{side.page}api/groups"))["unwell"]:
        for finding in line["findings"]:
            seen.at(line["group_id"], PAGE, name_of(Kind(finding["kind"])))
    for message in side.webhook.messages():
        if message["status"] == "began":
            seen.at(message["subject"], MESSAGE, message["kind"])
    values = dict(_values(side.metrics))
    for (name, group_id), value in values.items():
        if name in FOUND and value > 0:
            seen.at(group_id, METRICS, FOUND[name])
        if name == "group_coordinator_lag_seconds":
            offset = int(values["kafka_consumergroup_current_offset", group_id])
            records = int(values.get(("kafka_consumergroup_lag", group_id), 0))
            truth_ms = came.lag_ms(group_id, offset, records) if records else None
            if truth_ms is not None:
                seen.errors_ms[group_id].append(round(1000 * value) - truth_ms)


def _values(url: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Each sample about a group: its name and its group, and the value. A group has one partition here."""
    for family in text_string_to_metric_families(_get(url).decode()):
        for sample in family.samples:
            if "consumergroup" in sample.labels:
                yield (sample.name, sample.labels["consumergroup"]), sample.value


def look_at_alerts(address: str, seen: Seen) -> set[str]:
    """Take the alerts that fire. Returns the names of those that are not about a group."""
    others = set()
    for alert in json.loads(_get(f"{address}api/v1/alerts"))["data"]["alerts"]:
        labels: dict[str, Any] = alert["labels"]
        if alert["state"] != "firing":
            continue
        if labels["alertname"] in ALERTS:
            seen.at(labels["consumergroup"], ALERT, ALERTS[labels["alertname"]])
        else:
            others.add(f"{labels['alertname']} {labels.get('consumergroup', labels.get('instance', ''))}")
    return others


def table(played: list[Played], seen: Seen) -> Iterator[str]:
    """The lines of the table of what was found, in Markdown."""
    yield "| what happens at the turn | found as | page | metrics | alert | message |"
    yield "|---|---|---|---|---|---|"
    for one in played:
        kinds = [kind for kind in KINDS if any((one.group_id, at, kind) in seen.first_s for at in WHERE)]
        for kind in kinds or ["nothing"]:
            cells = [_after(one, seen.first_s.get((one.group_id, at, kind))) for at in WHERE]
            yield f"| {one.group_id} | {kind} | {' | '.join(cells)} |"


def _after(one: Played, at_s: float | None) -> str:
    assert one.turn_s is not None
    return "" if at_s is None else f"{at_s - one.turn_s:.0f} s"


def errors(played: list[Played], seen: Seen) -> Iterator[str]:
    """The lines of the table of the errors of the lag in time, in Markdown."""
    yield "| group | looks | error of the lag in time: least, median, greatest |"
    yield "|---|---|---|"
    for one in played:
        found = sorted(seen.errors_ms[one.group_id])
        if found:
            median = found[len(found) // 2]
            yield f"| {one.group_id} | {len(found)} | {found[0]} ms, {median} ms, {found[-1]} ms |"


def main() -> None:
    """Play all stories, and print the tables."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, came, seen = Path(name), Came(), Seen()
        broker, both = sides(stack, folder)
        address = prometheus(stack, folder, both)
        played = [
            Played(story, f"{side.name}-{story.replace(' ', '-')}", side.servers)
            for side in both
            for story in STORIES
        ]
        others: set[str] = set()
        with playing(played, broker, came) as turn:
            began_s, has_turned, said_s = time.monotonic(), False, 0.0
            while (since_s := time.monotonic() - began_s) < BEFORE_TURN_S + AFTER_TURN_S:
                if not has_turned and since_s > BEFORE_TURN_S:
                    turn()
                    has_turned = True
                for side in both:
                    look(side, came, seen)
                if address is not None:
                    others |= look_at_alerts(address, seen)
                if since_s - said_s > 60:
                    said_s = since_s
                    print(f"{since_s:.0f} s: {len(seen.first_s)} looks with a finding", flush=True)
                time.sleep(LOOK_S)
        print(*table(played, seen), "", *errors(played, seen), "", sep="\n")
        print("other alerts:", *sorted(others) or ["none"])


if __name__ == "__main__":
    main()
