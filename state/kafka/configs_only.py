"""The settings of a group id that has no group. As in Kafka, settings may be set before the group exists, and
they outlive it.
"""

from msgspec import Struct

from kafka_why.contract.settings import SettingValue


class ConfigsOnly(Struct, array_like=True, forbid_unknown_fields=True, tag="KafkaConfigs"):
    """The settings alone, by Kafka's names. A group that is created takes them over.

    `incarnation` is the id of the request, or the deadline, that brought it about. It has no history and no
    deadline: `seq` and `last_fired_ms` are 0, and `quarantined` is None. `clock_ms` is the time of the last
    event.
    """

    group_id: str
    incarnation: str
    clock_ms: int
    configs: dict[str, SettingValue]
    seq: int = 0
    last_fired_ms: int = 0
    quarantined: None = None
