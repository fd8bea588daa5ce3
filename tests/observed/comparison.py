"""One report beside one truth: names of members, and verdicts."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kafka_why.why.model import Cause
from kafka_why.why.report import Report
from kafka_why.wording import lasting_name
from tests.observed.lines import Class, Line, Source, Verdict
from tests.observed.truth import Step, Truth

EPOCHS = ("consumer", "streams", "share")
# Between what a client sees and what the broker writes.
NEAR_MS = 500


class Comparison:
    """One report, made from one source, beside one truth. `clients` are those of member ids that only another
    report on the group names.
    """

    def __init__(
        self, truth: Truth, report: Report, source: Source, clients: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.truth, self.report, self.source = truth, report, source
        self._names = {**clients, **report.clients}
        self._clients = {instance: client for client, instance in truth.instances.items()}

    def verdict(
        self, step: Step, line: Line, is_right: bool | None, said: object, happened: object = ""
    ) -> Verdict:
        class_ = Class.UNKNOWN if is_right is None else self._class(line) if is_right else Class.WRONG
        return Verdict(step.action, line, class_, str(said), str(happened))

    def _class(self, line: Line) -> Class:
        is_late = self.source is Source.POLLING and line in (Line.LAST_COMMIT, Line.ASSIGNED, Line.IDLE)
        is_inferred = self.source.is_observed and line is Line.ASSIGNOR and self.truth.protocol in EPOCHS
        return Class.INFERRED if is_inferred or is_late else Class.EXACT

    def named(self, cause: Cause) -> set[str]:
        """Return the client ids of the members that a cause is about."""
        return {self.client(member_id) for member_id in cause.member_ids}

    def client(self, member_id: str) -> str:
        """Return the client id of a member."""
        name = lasting_name(member_id, self._names)
        name = self._clients.get(name, name)
        return re.sub(r"-StreamThread-\d+-consumer$", "", name)


def partitions_in(by_topic: Mapping[str, Sequence[int]]) -> set[str]:
    """Return partitions as TOPIC:NUMBER."""
    return {f"{topic}:{number}" for topic, numbers in by_topic.items() for number in numbers}
