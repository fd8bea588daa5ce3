"""The replica and the outage around each start of the query. The time without a query is an outage, unless
the replica has answered meanwhile.
"""

from collections.abc import Callable
from contextlib import closing

import structlog

from checkpoints.metadata import KnownOutage
from kafka_why.contract.early_answers import ReplicaId
from streaming.replica.log_watch import Loss
from streaming.service.outages.outage import Acted, FirstRequest, acted_so_far, end_outage
from streaming.service.replica.supervision import Replica, SparkSource
from streaming.service.topics import LogAndState

log = structlog.get_logger()


class Continuity:
    """The control of the replica and of the outage around each start of the query. One thread calls it. Any
    thread may call `end` and `is_settled`.

    `acted` is the result of `streaming.service.outages.outage.acted_so_far` when the owner took the topics.
    `replica` is None if this owner runs none. `first_request` ends the outage if gateways are separate
    processes, and is None if this process's gateway already listens.
    """

    def __init__(
        self,
        ours: LogAndState,
        replica: Replica | None,
        owner_epoch: int,
        acted: Acted,
        first_request: FirstRequest | None = None,
    ) -> None:
        self._ours = ours
        self._replica = replica
        self._owner_epoch = owner_epoch
        self._acted: Acted | None = acted
        self._first_request = first_request
        self._replica_continues = False
        """True if the replica needs no start, because it already has the outages of the next query."""
        self._promoted_outages: list[KnownOutage] | None = None
        """The outages of a promoted replica, until the next query has them."""

    def promote(self, spark: SparkSource) -> None:
        """Promote the standby's replica, so that it answers before the query starts, and end the outage.

        Raises KafkaError.
        """
        assert self._replica is not None
        assert self._acted is not None
        outages = end_outage(self._ours, self._acted)
        if self._replica.promote(spark, self._ours.checkpoint.record()):
            self._promoted_outages = outages

    def wait_for_clients(
        self, wait_s: float, given_up: Callable[[], bool], on_reason: Callable[[str], None]
    ) -> None:
        """Wait for a client's request for at most `wait_s`, at the first start of the query."""
        if self._first_request is None:
            return
        on_reason(f"sessions begin with the first request, in {wait_s:.0f} s at the latest")
        with closing(self._first_request) as first:
            has_come = first.wait(wait_s, given_up)
        log.info("the outage ends", because="a request came" if has_come else "no request came in time")
        self._first_request = None

    def end_outage_or_promote(self, spark: SparkSource) -> list[KnownOutage]:
        """End the outage, or promote the standby's replica. Return the outages for the next query. Raises
        KafkaError.

        While the replica answers, clients see a coordinator. So sessions continue, and there is no outage.
        """
        if self._promoted_outages is None and self._replica is not None and self._replica.is_standby:
            self.promote(spark)
        if self._promoted_outages is not None:
            outages, self._promoted_outages, self._acted = self._promoted_outages, None, None
            self._replica_continues = True
            return outages
        self._replica_continues = self._replica is not None and self._replica.is_answering()
        if self._replica_continues:
            log.info("the replica answers, so the query continues without an outage")
            return self._ours.checkpoint.record().outages
        if self._replica is not None:
            self._replica.end()
        if self._acted is None:
            first = ReplicaId(self._owner_epoch, 1) if self._replica is None else self._replica.next_id()
            self._acted = acted_so_far(self._ours, first)
        outages = end_outage(self._ours, self._acted)
        self._acted = None
        return outages

    def query_started(self, spark: SparkSource, outages: list[KnownOutage], *, checks_clocks: bool) -> None:
        """Start the replica, because the query with these outages has started, unless the replica continues.

        If `checks_clocks` is False, clock records of later owners are ignored. No replica is then started,
        because nothing in the log could end it.
        """
        if self._replica is None or self._replica_continues:
            return
        if checks_clocks:
            self._replica.follow(spark, outages)
        else:
            self._replica.end_because("clock records of later owners are ignored, and only one can end it")

    def batch_committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        """Notify the replica that a committed batch has read the requests up to these ends."""
        if self._replica is not None:
            self._replica.committed(ends, watermark_ms)

    def loss(self) -> Loss | None:
        """Return the loss of records that the replica has found, or None. The query cannot continue after
        it.
        """
        return None if self._replica is None else self._replica.loss()

    def end(self) -> None:
        """End the replica, because the service stops."""
        if self._replica is not None:
            self._replica.end()

    def is_settled(self) -> bool:
        """Return True if the query has handled all that the replica has answered."""
        return self._replica is None or self._replica.is_settled()
