"""The kinds of faults: `KINDS` has each of them, `LOST` those that delete requests, and `WITH_STANDBY` what
happens to a coordinator with a standby.
"""

from tests.campaigns.fault import by_name
from tests.campaigns.processes import PROCESSES
from tests.faults.campaign.kinds.damage import DAMAGE
from tests.faults.campaign.kinds.lost_requests import LOST_REQUESTS
from tests.faults.campaign.kinds.standby import STANDBY

LOST = by_name(*LOST_REQUESTS)
LOCAL = PROCESSES | by_name(*DAMAGE) | LOST
WITH_STANDBY = by_name(*STANDBY) | PROCESSES
KINDS = LOCAL | WITH_STANDBY
