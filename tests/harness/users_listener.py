"""Settings of a broker with Kafka's authorizer and a second listener, where clients use SASL/PLAIN."""

from collections.abc import Collection, Mapping
from pathlib import Path

from embedded.broker import Ports, free_ports
from embedded.java import HOST
from kafka_why.connections.address import Address

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def users_listener(
    users: Mapping[str, str], super_users: Collection[str]
) -> tuple[Ports, Address, Mapping[str, str]]:
    """Return the ports of a broker, the address of its second listener, and its settings.

    `users` are passwords by name, `super_users` are principals. The first listener has no authentication, and
    all its clients are super users.
    """
    ports = free_ports()
    secured = Address(HOST, free_ports().client)
    login_options = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    client, controller = f"CLIENT://{HOST}:{ports.client}", f"CONTROLLER://{HOST}:{ports.controller}"
    settings = {
        "listeners": f"{client},{controller},USERS://{secured}",
        "advertised.listeners": f"{client},USERS://{secured}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f"{_LOGIN} required {login_options};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(["User:ANONYMOUS", *super_users]),
    }
    return ports, secured, settings


def users_file(folder: Path, users: Mapping[str, str]) -> Path:
    """Write a gateway's users file, and return its path."""
    path = folder / "users"
    path.write_text("".join(f"{name}:{password}\n" for name, password in users.items()))
    return path
