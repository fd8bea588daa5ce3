"""The stage of the fault campaign: its load are many groups, whose topics and answers are judged."""

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random

from clients.coordinator_client import CoordinatorClient
from kafka_why.contract.kafka.requests import OffsetFetch
from kafka_why.contract.layout import TopicLayout
from tests.campaigns.planted import bug_of
from tests.campaigns.results import Result, StruckFault
from tests.campaigns.stage import (
    CONSUMER_SESSION_MS,
    PREFIX,
    Stage,
    one_broker,
)
from tests.campaigns.verdict import Verdict
from tests.e2e.harness import create_topic
from tests.faults.campaign.judge.answers import judge_answers
from tests.faults.campaign.judge.judging import Case, judge, read_evidence
from tests.faults.campaign.judge.topics import Evidence
from tests.faults.campaign.judge.transactions import Outcomes
from tests.faults.campaign.load.meter import PARTITIONS, TOPIC
from tests.faults.campaign.load.running import Load

RECOVERY_TIMEOUT_S = 300.0
QUIET_TIMEOUT_S = 120.0
# All rebalances end in this time: REBALANCE_MS, and some time for the coordinator.
PARKED_TIMEOUT_S = 80.0
POLL_S = 3.0
REQUESTS, EARLY = "requests", "early"
TRANSACTIONS, ASSIGNMENTS = "transactions committed", "assignments by the consumer protocol"


class FaultStage(Stage):
    """A stage with the groups of `Load`."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        groups: Mapping[str, int],
        *,
        step: str = "steady",
        with_standby: bool = False,
        is_sample: bool = False,
    ) -> None:
        """`groups` are as in `Load`. Without any there are the brokers alone, for faults that start all else
        themselves. A sample has one broker in the place of three.
        """
        brokers = one_broker(folder) if is_sample else None
        super().__init__(folder, seed, step=step, with_standby=with_standby, brokers=brokers)
        self.layout = TopicLayout.named(PREFIX)
        self.verdicts: list[Verdict] = []
        """Wrongs found on topics that a fault made for itself."""
        self.measured: dict[str, float] = {}
        """What was measured of the fault that strikes now."""
        self.load = Load(seed, groups)

    def start_load(self, stack: ExitStack) -> None:
        create_topic(self.client_config, TOPIC, PARTITIONS, {})
        if self.load.groups:
            address = self.gateway_address()
            self.start_coordinators(stack)
            self.gateway = self.start_gateway(stack, "gateway", address)
            self.load.start(self.servers, self.layout, address)
            stack.callback(self.load.stop)
            self.wait_for_progress()

    @property
    def load_so_far(self) -> str:
        return f"{self.load.meter.in_flight} in flight"

    def now(self) -> int:
        return int(time.time() * 1000)

    def before_fault(self, struck: StruckFault, random: Random) -> None:
        self.measured = struck.measured
        self.measured["in flight"] = self.load.meter.in_flight

    def after_fault(self, struck: StruckFault) -> None:
        self.note_outages()

    def wait_for_progress(self) -> float:
        """Wait until each group has the answer to a request that it sends from now on."""
        since_s = time.monotonic()
        behind = self.load.meter.wait_for_answers(self.load.groups, since_s, RECOVERY_TIMEOUT_S)
        if self.load.failure is not None:
            raise self.load.failure
        assert not behind, f"{len(behind)} groups, as {behind[:3]}, have no answer"
        return time.monotonic() - since_s

    def judge(self, result: Result) -> None:
        """Judge what the topics have, and then by the core itself if it has no bugs."""
        result.take(self.verdicts)
        if not self.load.groups:
            return
        found, case = self._quiet()
        result.take(judge(found, case))
        result.numbers = {
            REQUESTS: len(found.requests),
            EARLY: len(found.early),
            TRANSACTIONS: len(case.outcomes.committed),
            ASSIGNMENTS: sum(bool(answer.given) for answer in found.answered.values()),
        }
        if self.step == "steady":
            self.replay(result)

    def _quiet(self) -> tuple[Evidence, Case]:
        """Stop the load, wait until the coordinator has handled everything, and read the topics.

        Answers that a planted bug may have dropped are not waited for.
        """
        self.load.stop()
        meter = self.load.meter
        acknowledged = meter.acknowledged()
        self._wait_until_handled(self.load.groups)
        self.note_outages()
        outcomes = Outcomes(meter.transactions[True], meter.transactions[False])
        case = Case(
            PREFIX,
            TOPIC,
            self.outages,
            acknowledged,
            outcomes=outcomes,
            consumer_session_ms=CONSUMER_SESSION_MS,
        )
        # A JoinGroup that waits for members which the load has stopped is answered when they have expired.
        give_up_s = time.monotonic() + PARKED_TIMEOUT_S
        while True:
            found = read_evidence(self.servers, case)
            missing = [it for it in judge_answers(found) if self.step == "steady" or not bug_of(it.place)]
            if not missing or time.monotonic() > give_up_s:
                return found, case
            time.sleep(POLL_S)

    def _wait_until_handled(self, groups: Collection[str]) -> None:
        """Wait until a request that is sent now is answered, so that all before it are handled.

        One of each group, because a request that waits for other members is answered only with them; and the
        judge then sees what a client fetches last.
        """
        timeout_ms = int(QUIET_TIMEOUT_S * 1000)
        with CoordinatorClient(
            self.client_config, self.layout, client_id="last", request_timeout_ms=timeout_ms
        ) as client:
            fetches = [
                client.send(OffsetFetch(**client.header(group, 5), topics=None)) for group in sorted(groups)
            ]
            for fetch in fetches:
                fetch.result(QUIET_TIMEOUT_S)
