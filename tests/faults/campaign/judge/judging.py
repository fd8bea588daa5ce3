"""All that the judge judges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.campaigns.reading import read
from tests.campaigns.verdict import Verdict
from tests.faults.campaign.judge.answers import judge_answers, judge_history
from tests.faults.campaign.judge.epochs import judge_epochs
from tests.faults.campaign.judge.members import judge_clients, judge_expiries
from tests.faults.campaign.judge.offsets import judge_offsets
from tests.faults.campaign.judge.owners import judge_locks, judge_owners
from tests.faults.campaign.judge.topics import Evidence, evidence
from tests.faults.campaign.judge.transactions import Outcomes


@dataclass(frozen=True)
class Case:
    """What the judge knows besides the topics.

    `outages` are those of the coordinator's folder, each as its begin and its end. `acknowledged` are the
    offsets whose commits clients saw acknowledged, `outcomes` what clients know of their transactions. A
    connection of RocketMQ's is removed after `client_expiry_ms` of silence, a member of the consumer protocol
    after `consumer_session_ms`.
    """

    prefix: str
    topic: str
    outages: Iterable[tuple[int, int]] = ()
    acknowledged: Mapping[tuple[str, int], int] = field(default_factory=dict)
    client_expiry_ms: int = 120_000
    outcomes: Outcomes = field(default_factory=Outcomes)
    consumer_session_ms: int = 45_000


def judge(found: Evidence, case: Case) -> list[Verdict]:
    """Yield every violation."""
    return [
        *judge_answers(found),
        *judge_history(found),
        *judge_expiries(found),
        *judge_clients(found, case.client_expiry_ms),
        *judge_epochs(found, case.consumer_session_ms),
        *judge_offsets(found, case.acknowledged, case.topic, case.outcomes),
        *judge_owners(found),
        *judge_locks(found),
    ]


def read_evidence(servers: str, case: Case) -> Evidence:
    """Read all topics of a coordinator."""

    topics = {
        name.replace("-", "_"): read(servers, f"{case.prefix}-{name}")
        for name in ("requests", "responses", "events", "dead-letters", "offsets")
    }
    return evidence(f"{case.prefix}-requests", outages=case.outages, **topics)
