"""The stage of the fault campaign: its load are many groups, whose topics and answers are judged."""

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql import SparkSession

from clients.coordinator_client import CoordinatorClient
from records.layout import TopicLayout
from state.kafka.requests import OffsetFetch
from streaming.query.session import Session
from tests.campaigns.fault import FaultOutcome
from tests.campaigns.planted import bug_of
from tests.campaigns.results import Result, Struck
from tests.campaigns.stage import (
    CLIENT_EXPIRY_MS,
    CONSUMER_SESSION_MS,
    PREFIX,
    ROOT,
    Stage,
    Stalled,
    command_line,
    environment,
)
from tests.e2e.harness import create_topic
from tests.faults.campaign.judge.answers import judge_answers
from tests.faults.campaign.judge.judging import Case, judge, read_evidence
from tests.faults.campaign.judge.topics import Evidence
from tests.faults.campaign.judge.transactions import Outcomes
from tests.faults.campaign.judge.verdicts import Verdict
from tests.faults.campaign.load.classic import PARTITIONS, TOPIC
from tests.faults.campaign.load.running import PROTOCOLS, TRANSACTIONAL, Load
from tests.faults.campaign.outages import in_force

RECOVERY_TIMEOUT_S = 300.0
QUIET_TIMEOUT_S = 120.0
# All rebalances end in this time: REBALANCE_MS, and some time for the coordinator.
PARKED_TIMEOUT_S = 80.0
POLL_S = 3.0
REPLAY_TIMEOUT_S = 900.0
IDENTICAL = "identical"


class MeasuredLoss(NamedTuple):
    """Measurements of a coordinator that lost requests, in seconds from the loss.

    `silence_s` is until the last acknowledgement of a request that no batch handled, `end_s` until the end of
    the process, or None if it went on.
    """

    silence_s: float
    end_s: float | None


@dataclass(kw_only=True)
class FaultStruck(Struck):
    """One fault. `silence_s` and `end_s` are what `MeasuredLoss` has, None for other faults."""

    at_ms: int
    in_flight: int
    outcome: str = ""
    until_ms: int = 0
    silence_s: float | None = None
    end_s: float | None = None


@dataclass(kw_only=True)
class FaultResult(Result[FaultStruck]):
    """The result of one seed. `wrongs` are by the fault in whose time they came."""

    found: list[tuple[str, str]] = field(default_factory=list)
    """Each wrong and its group."""
    requests: int = 0
    early: int = 0
    transactions: int = 0
    """Those with offsets whose commit was acknowledged."""
    assignments: int = 0
    """Answers that gave partitions to a member of the consumer protocol."""
    replay: str = ""
    """The output of the command `replay` on all groups: "identical", or the differences."""

    @property
    def is_well(self) -> bool:
        return super().is_well and self.replay in ("", IDENTICAL)

    @property
    def summary(self) -> str:
        return (
            f"{super().summary}, {self.requests} requests, {self.transactions} transactions committed, "
            f"{self.assignments} assignments by the consumer protocol"
        )

    @property
    def complaints(self) -> list[str]:
        return [*super().complaints, *([] if self.replay == IDENTICAL else [self.replay])]

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Count each wrong with the fault in whose time it came."""
        for verdict in verdicts:
            self.found.append((verdict.wrong.value, verdict.group_id))
            begun = [struck.fault for struck in self.struck if struck.at_ms <= verdict.at_ms]
            where = f"group {verdict.group_id!r} at {verdict.at_ms}"
            self.count(["none", *begun][-1], verdict.wrong, f"{where}: {verdict.sentence}")


class FaultStage(Stage[FaultStruck, FaultResult]):
    """A stage with the groups of `Load`."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        step: str = "steady",
        share: float = 1.0,
        groups: Mapping[str, int] = MappingProxyType({}),
        on_cluster: bool = False,
        with_standby: bool = False,
        with_load: bool = True,
    ) -> None:
        """`share` and `groups` are as in `Load`. Without `with_load` there are the brokers alone, for faults
        that start all else themselves.
        """
        super().__init__(folder, seed, step=step, on_cluster=on_cluster, with_standby=with_standby)
        self.layout = TopicLayout.named(PREFIX)
        self.outages: set[tuple[int, int]] = set()
        """(after, until) in ms: all that the coordinator has written to its folder."""
        self.verdicts: list[Verdict] = []
        """Wrongs found on topics that a fault made for itself."""
        self.losses: list[MeasuredLoss] = []
        """Measurements of coordinators that lost requests."""
        self.has_load = with_load
        self._session: Session | None = None
        self._share = share
        self._groups = groups if with_load else dict.fromkeys(PROTOCOLS, 0)

    def start_load(self, stack: ExitStack) -> None:
        create_topic(self.client_config, TOPIC, PARTITIONS, {})
        gateway = self.gateway_address()
        self.load = Load(
            self.servers, self.layout, gateway, self.seed, share=self._share, groups=self._groups
        )
        if self.has_load:
            self.start_coordinators(stack)
            self.gateway = self.start_gateway(stack, "gateway", gateway)
            self.load.start()
            stack.callback(self.load.stop)
            self.wait_for_progress()

    @property
    def load_so_far(self) -> str:
        return f"{self.load.meter.in_flight} in flight"

    def begin(self, fault: str, random: Random) -> FaultStruck:
        self.losses.clear()
        return FaultStruck(fault=fault, at_ms=int(time.time() * 1000), in_flight=self.load.meter.in_flight)

    def end(self, struck: FaultStruck, outcome: FaultOutcome) -> None:
        self.note_outages()
        struck.outcome, struck.until_ms = outcome.value, int(time.time() * 1000)
        for loss in self.losses:
            struck.silence_s, struck.end_s = loss

    def wait_for_progress(self) -> float:
        """Wait until each group has the answer to a request that it sends from now on."""
        since_s = time.monotonic()
        behind = self.load.meter.wait_for_answers(self.load.all_groups, since_s, RECOVERY_TIMEOUT_S)
        if self.load.failure is not None:
            raise self.load.failure
        if behind:
            raise Stalled(
                f"{len(behind)} groups, as {behind[:3]}, have no answer after {RECOVERY_TIMEOUT_S:.0f} s; "
                f"status {self.status()}; the coordinator's ends {self.coordinator.ends[-3:]}"
            )
        return time.monotonic() - since_s

    def judge(self, result: FaultResult) -> None:
        """Judge what the topics have, and then by the core itself if it has no bugs."""
        result.take(self.verdicts)
        if not self.has_load:
            return
        found, case = self._quiet()
        result.requests = len(found.requests)
        result.early = len(found.early)
        result.transactions = len(case.outcomes.committed)
        result.assignments = sum(bool(answer.given) for answer in found.answered.values())
        result.take(judge(found, case))
        if self.step == "steady":
            result.replay = self._replay()

    def _quiet(self) -> tuple[Evidence, Case]:
        """Stop the load, wait until the coordinator has handled everything, and read the topics.

        Answers that a planted bug may have dropped are not waited for.
        """
        self.load.stop()
        self._wait_until_handled()
        self.note_outages()
        meter = self.load.meter
        acknowledged = {key: offset for key, (offset, _) in meter.committed.items()}
        outcomes = Outcomes(meter.transactions[True], meter.transactions[False])
        case = Case(
            PREFIX, TOPIC, self.outages, acknowledged, CLIENT_EXPIRY_MS, outcomes, CONSUMER_SESSION_MS
        )
        # A JoinGroup that waits for members which the load has stopped is answered when they have expired.
        give_up_s = time.monotonic() + PARKED_TIMEOUT_S
        while True:
            found = read_evidence(self.servers, case)
            missing = [it for it in judge_answers(found) if self.step == "steady" or not bug_of(it.group_id)]
            if not missing or time.monotonic() > give_up_s:
                return found, case
            time.sleep(POLL_S)

    def _replay(self) -> str:
        """Judge a second time: by the core itself, offline."""
        arguments = ["replay", "--all", "--from-topic", "--data-dir", str(self.data)]
        if self.shared is not None:
            arguments += ["--checkpoint", str(self.shared)]
        done = subprocess.run(
            command_line([*arguments, "--bootstrap-servers", self.servers]),
            capture_output=True,
            text=True,
            timeout=REPLAY_TIMEOUT_S,
            env=os.environ | environment(),
            check=False,
        )
        return IDENTICAL if done.returncode == 0 else (done.stdout + done.stderr)[-20_000:]

    def note_outages(self) -> None:
        """Keep the outages of the newest owner's record, which has the last 100."""
        for path in sorted(self.checkpoint.glob("owners/*.json"), key=lambda path: -int(path.stem)):
            try:
                known = json.loads(path.read_text())["outages"]
            except (FileNotFoundError, json.JSONDecodeError):
                continue  # written now, or damaged by a fault
            newest = {(one["outage"]["after_ms"], one["outage"]["until_ms"]) for one in known}
            self.outages = in_force(self.outages, newest)
            return

    def spark(self) -> SparkSession:
        """A Spark in this process, for faults that need topics of their own. Started at the first call."""
        if self._session is None:
            os.environ["PYTHONPATH"] = str(ROOT)
            self._session = Session(log_path=self.folder / "spark.log")
            self._stack.callback(self._session.stop)
        return self._session.spark

    def _wait_until_handled(self) -> None:
        """Wait until a request that is sent now is answered, so that all before it are handled.

        One of each group, because a request that waits for other members is answered only with them; and the
        judge then sees what a client fetches last.
        """
        with CoordinatorClient(
            self.client_config,
            self.layout,
            client_id="last",
            request_timeout_ms=int(QUIET_TIMEOUT_S * 1000),
        ) as client:
            groups = {group for group, _ in self.load.meter.committed}
            groups |= {*self.load.groups[TRANSACTIONAL], *self.load.groups["classic, on the topics"]}
            fetches = [
                client.send(OffsetFetch(**client.header(group, 5), topics=None)) for group in sorted(groups)
            ]
            for fetch in fetches:
                fetch.result(QUIET_TIMEOUT_S)
