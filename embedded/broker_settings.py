"""The settings of the embedded broker, those that a user may give it, and their encoding as properties."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        # Relative to the data folder, in which the broker runs. The absolute path may have characters that a
        # properties file or Kafka's comma-separated list of folders cannot hold.
        "log.dirs": "log",
        # Topics are created explicitly, with the settings this project checks.
        "auto.create.topics.enable": "false",
        # There is one node.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # A restart after a crash has to wait for the end of the lost broker's session. The default is 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        "message.max.bytes": str(8 * 1024 * 1024),
        "replica.fetch.max.bytes": str(8 * 1024 * 1024),
        "log.retention.hours": "168",
        # The cleaner's default, 128 MiB for its map of offsets, is a quarter of this broker's heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
)
"""The settings of every embedded broker, besides its addresses."""

# Settings that the embedding decides: the broker's addresses, its data folder, and that it is one node.
_OURS = re.compile(
    r"process\.roles|node\.id|broker\.id|broker\.id\..*|controller\..*|(metadata\.)?log\.dirs?|cluster\.id"
    r"|listeners|advertised\.listeners|early\.start\.listeners|listener\..*"
    r"|inter\.broker\.listener\.name|security\.inter\.broker\.protocol"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WHOLE = re.compile(r"[0-9]+")
# Replication factors and the like. With one broker they can only be 1.
_COPIES = re.compile(r".*(replication\.factor|min\.insync\.replicas|\.min\.isr)")


class BrokerSettingRefused(ValueError):
    """A setting that the embedded broker does not accept. The message has the reason."""


def check_broker_settings(settings: Mapping[str, str]) -> None:
    """Check that the settings do not break the embedding. Raises BrokerSettingRefused.

    The broker itself refuses unknown settings and invalid values when it starts.
    """
    for name, value in settings.items():
        if not _NAME.fullmatch(name):
            raise BrokerSettingRefused(f"{name!r} is not the name of a broker setting")
        if _OURS.fullmatch(name.lower()):
            raise BrokerSettingRefused(
                f"{name} cannot be set: the embedded broker is one node on loopback with its data in the "
                "data folder; for anything else start a broker and name it with --bootstrap-servers"
            )
        if _COPIES.fullmatch(name) and _WHOLE.fullmatch(value) and int(value[:10]) > 1:
            raise BrokerSettingRefused(f"{name} can only be 1, because there is one broker, not {value}")
        if not value.isprintable():
            raise BrokerSettingRefused(f"the value of {name} has characters that cannot be printed")


def escaped(value: str) -> str:
    """Escape a value for Java's properties files (java.util.Properties.load): ISO 8859-1 with escapes."""
    text = value.replace("\\", "\\\\").encode("utf-16-be")
    units = [int.from_bytes(text[i : i + 2]) for i in range(0, len(text), 2)]
    return "".join(chr(unit) if unit < 0x7F else f"\\u{unit:04x}" for unit in units)


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write a properties file that only its owner may read, because the settings may have passwords."""
    path.touch(mode=0o600)
    path.chmod(0o600)  # a file that existed has kept its mode
    path.write_text("".join(f"{name}={escaped(value)}\n" for name, value in settings.items()))
