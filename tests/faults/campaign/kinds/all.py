"""Every kind of fault, by name."""

from tests.campaigns.fault import Fault
from tests.campaigns.processes import PROCESSES
from tests.faults.campaign.kinds.clock import CLOCK
from tests.faults.campaign.kinds.disk import DISK
from tests.faults.campaign.kinds.executors import EXECUTORS
from tests.faults.campaign.kinds.others import OTHERS
from tests.faults.campaign.kinds.retention import LOST_REQUESTS, RETENTION
from tests.faults.campaign.kinds.standby import STANDBY
from tests.faults.campaign.stage import FaultStage


def _by_name(*faults: Fault[FaultStage]) -> dict[str, Fault[FaultStage]]:
    return {fault.name: fault for fault in faults}


LOST = _by_name(*LOST_REQUESTS)
ALONE = _by_name(*RETENTION, *LOST_REQUESTS)
"""Kinds that start a coordinator of their own, and need no other one and no load beside it."""
LOCAL = _by_name(*PROCESSES, *DISK, *OTHERS, *CLOCK) | ALONE
WITH_STANDBY = _by_name(*STANDBY, *PROCESSES)
"""What happens to a coordinator with a standby."""
ON_CLUSTER = _by_name(*EXECUTORS, *PROCESSES)
"""What happens to a coordinator on a Spark cluster."""
KINDS = LOCAL | WITH_STANDBY | ON_CLUSTER
