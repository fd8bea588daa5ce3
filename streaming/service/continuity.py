"""What the time without a query was: an outage, or time in which the replica went on answering."""

import structlog

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import KnownOutage
from records.client_config import ClientConfig
from records.early_answers import ReplicaId
from records.layout import TopicLayout
from streaming.service.outage import Acted, acted_so_far, end_outage
from streaming.service.replica import Replica, Spark

log = structlog.get_logger()


class Continuity:
    """Asked around each start of the query, by one thread.

    `acted` is what `streaming.service.outage.acted_so_far` said when the owner took the topics. `replica`
    None: this owner runs none.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        checkpoint: Checkpoint,
        replica: Replica | None,
        owner_epoch: int,
        acted: Acted,
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._checkpoint = checkpoint
        self._replica = replica
        self._owner_epoch = owner_epoch
        self._acted: Acted | None = acted
        self._goes_on = False
        self._begun: list[KnownOutage] | None = None

    def promote(self, spark: Spark) -> None:
        """Let the standby's replica answer before the query starts. The outage ends now.

        Raises KafkaError and RequestsDeleted.
        """
        assert self._replica is not None
        assert self._acted is not None
        outages = end_outage(self._client_config, self._layout, self._checkpoint, self._acted)
        if self._replica.promote(spark, self._checkpoint.record()):
            self._begun = outages

    def outages(self) -> list[KnownOutage]:
        """Return the outages that the next query has to know. One ends now, unless the replica answers.

        While the replica answers, clients see a coordinator. So sessions go on, and there is no outage.
        Raises KafkaError and RequestsDeleted.
        """
        if self._begun is not None:
            # The replica has these, whether it has come to answering yet or not.
            outages, self._begun, self._acted, self._goes_on = self._begun, None, None, True
            return outages
        self._goes_on = self._replica is not None and self._replica.is_answering()
        if self._goes_on:
            log.info("the replica answers, so the query goes on without an outage")
            return self._checkpoint.record().outages
        if self._replica is not None:
            self._replica.end()
        if self._acted is None:
            first = ReplicaId(self._owner_epoch, 1) if self._replica is None else self._replica.next_id()
            self._acted = acted_so_far(self._client_config, self._layout, self._checkpoint, first)
        outages = end_outage(self._client_config, self._layout, self._checkpoint, self._acted)
        self._acted = None
        return outages

    def query_started(self, spark: Spark, outages: list[KnownOutage], *, checks_clocks: bool) -> None:
        """The query with these outages has started: start the replica, unless it has gone on.

        `checks_clocks`: clock records of later owners are believed. If they are not, nothing in the log could
        end a replica of this owner, so there is none.
        """
        if self._replica is None or self._goes_on:
            return
        if checks_clocks:
            self._replica.follow(spark, outages)
        else:
            self._replica.stay_ended("clock records of later owners are not believed, and one has to end it")
