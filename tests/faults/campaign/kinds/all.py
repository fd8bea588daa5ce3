"""Every kind of fault, by name."""

from tests.faults.campaign.cluster import CampaignCluster
from tests.faults.campaign.kinds.clock import CLOCK
from tests.faults.campaign.kinds.disk import DISK
from tests.faults.campaign.kinds.fault import Fault
from tests.faults.campaign.kinds.others import OTHERS
from tests.faults.campaign.kinds.processes import EXECUTORS, PROCESSES
from tests.faults.campaign.kinds.retention import LOST_REQUESTS, RETENTION
from tests.faults.campaign.kinds.standby import STANDBY

LOCAL = (*PROCESSES, *DISK, *OTHERS, *CLOCK, *RETENTION, *LOST_REQUESTS)
WITH_STANDBY = (*STANDBY, *PROCESSES)
"""What happens to a coordinator with a standby."""
ON_CLUSTER = (*EXECUTORS, *PROCESSES)
"""What happens to a coordinator on a Spark cluster."""
KINDS: dict[str, Fault[CampaignCluster]] = {fault.name: fault for fault in (*LOCAL, *STANDBY, *EXECUTORS)}
ALONE = frozenset(fault.name for fault in (*RETENTION, *LOST_REQUESTS))
"""What happens to a coordinator of its own, so that it needs no other one and no load beside it."""
