"""Name servers, keys and TLS of a RocketMQ cluster, read from the settings of RocketMQ's own tools.

Source: tools.yml of mqadmin, TlsSystemConfig.java, NameServerAddressUtils.java.
"""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafka_why.connections.address import Address
from kafka_why.connections.properties import read_properties

ACCESS_KEY, SECRET_KEY = "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"
# A "#" begins a comment only after a blank.
_KEY_LINE = re.compile(
    r"^[ \t]*(?P<name>accessKey|secretKey)[ \t]*:[ \t]*(?P<quote>[\"']?)(?P<value>.*?)(?P=quote)"
    r"[ \t]*(?:(?<=[ \t])#.*)?$",
    re.MULTILINE,
)


class RocketMqServers(NamedTuple):
    """The name servers of a RocketMQ cluster, and how to connect."""

    addresses: tuple[str, ...]  # HOST:PORT
    keys: tuple[str, str] | None = None  # access key and secret key; None without ACL
    tls: ssl.SSLContext | None = None  # None without TLS

    @classmethod
    def read(
        cls, addresses: tuple[str, ...], keys: Path | None, tls: Path | None, environ: Mapping[str, str]
    ) -> "RocketMqServers":
        """Return the servers with the keys and TLS of these files. Raises ValueError or OSError."""
        return cls(addresses, read_keys(keys, environ), None if tls is None else tls_context(tls))

    def __str__(self) -> str:
        return ";".join(self.addresses)


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Return the addresses of `HOST:PORT;HOST:PORT` or `http://INSTANCE.HOST:PORT`. Raises ValueError."""
    # INSTANCE is a part of the host's name, so only `http://` is removed.
    addresses = [part.rpartition("/")[2].strip() for part in re.split("[;,]", text) if part.strip()]
    if not addresses:
        raise ValueError("no name server is given")
    return tuple(str(Address.parse(address)) for address in addresses)


def read_keys(path: Path | None, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the access key and the secret key of a file like mqadmin's tools.yml, else of the environment.

    Return None if neither has them. Raises ValueError or OSError.
    """
    if path is None:
        keys = {"accessKey": environ.get(ACCESS_KEY, ""), "secretKey": environ.get(SECRET_KEY, "")}
        if not any(keys.values()):
            return None
    else:
        keys = {line["name"]: line["value"] for line in _KEY_LINE.finditer(path.read_text())}
    if not keys.get("accessKey") or not keys.get("secretKey"):
        where = f"{ACCESS_KEY} and {SECRET_KEY}" if path is None else str(path)
        raise ValueError(f"{where}: an access key needs a secret key (accessKey, secretKey)")
    return keys["accessKey"], keys["secretKey"]


def tls_context(path: Path) -> ssl.SSLContext:
    """Return the context for a file of RocketMQ's `tls.config.file`. Raises ValueError or OSError.

    As in RocketMQ's clients, the server is verified only with `tls.client.authServer=true`, by the system's
    certificates unless `tls.client.trustCertPath` is set.
    """
    settings = read_properties(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # RocketMQ's clients do not check the host name
    context.verify_mode = ssl.CERT_NONE
    if settings.get("tls.client.authServer", "").lower() == "true":
        if trusted := settings.get("tls.client.trustCertPath"):
            context.load_verify_locations(trusted)
        else:
            context.load_default_certs()
        context.verify_mode = ssl.CERT_REQUIRED
    if certificate := settings.get("tls.client.certPath"):
        key, password = settings.get("tls.client.keyPath"), settings.get("tls.client.keyPassword")
        context.load_cert_chain(certificate, key, password)
    return context
