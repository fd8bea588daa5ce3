"""Security settings of brokers for tests, and a real broker that has them.

Each broker has two listeners for clients, both with TLS by one authority: the first for SASL (PLAIN,
SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER), the other for clients with a certificate. Brokers and controllers
reach each other by certificates, too.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)

from embedded.broker import EmbeddedBroker, Ports, escaped, free_ports
from embedded.java import HOST
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from tests.harness.certificates import Authority, Issued, TokenIssuer

ADMIN = "admin"
"""A super user, by PLAIN, SCRAM or a certificate."""
COORDINATOR = "coordinator"
GATEWAY = "gateway"
TOOLS = "tools"
USERS: Mapping[str, str] = MappingProxyType(
    {
        ADMIN: "admins-Passw0rd",
        COORDINATOR: "coordinators-Passw0rd",
        GATEWAY: "gateways-Passw0rd",
        TOOLS: 'tools-"Passw0rd";=,',  # what has to be escaped somewhere
        "alice": "alices-Passw0rd",
        "bob": "bobs-Passw0rd",
    }
)
"""The users with their passwords for PLAIN and SCRAM."""
SCRAM_ITERATIONS = 4_096
_BROKER = "broker"
_SECURITY = "org.apache.kafka.common.security"
_MODULES = {
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLERS = f"{_SECURITY}.oauthbearer.OAuthBearer"


@dataclass(frozen=True)
class Allowed:
    """The operations that a user may do on a resource, by Kafka's names."""

    user: str
    resource: str
    name: str
    pattern: str
    operations: tuple[str, ...]


class ClusterSecurity:
    """The authority, the users and the tokens of one cluster, with their files in `folder`.

    With `authorizes` its brokers have the StandardAuthorizer, which refuses what no ACL allows, except to
    `super_users` (names without "User:").
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] = USERS,
        authorizes: bool = False,
        super_users: tuple[str, ...] = (ADMIN,),
    ) -> None:
        self.folder = folder.absolute()
        self.users = dict(users)
        self.authority = Authority(self.folder)
        self.issuer = TokenIssuer(self.folder)
        self._authorizes = authorizes
        self._super_users = super_users
        self._server = self.authority.issue(_BROKER)
        self._certificates: dict[str, Issued] = {}

    @property
    def secrets(self) -> tuple[str, ...]:
        """The passwords, which must appear nowhere but in settings."""
        return tuple(self.users.values())

    def certificate(self, user: str) -> Issued:
        if user not in self._certificates:
            self._certificates[user] = self.authority.issue(user)
        return self._certificates[user]

    def client_properties(self, user: str = ADMIN, mechanism: str = "PLAIN") -> dict[str, str]:
        """Return Kafka's client settings for the listener with SASL."""
        login = f"username={_quoted(user)} password={_quoted(self.users[user])}"
        return {
            "security.protocol": "SASL_SSL",
            **self.trust(),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{_MODULES[mechanism]} required {login};",
        }

    def certificate_properties(self, user: str) -> dict[str, str]:
        """Return Kafka's client settings for the listener with certificates."""
        return {
            "security.protocol": "SSL",
            **self.trust(),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate(user).both),
        }

    def token_properties(self, endpoint: str, client: str, secret: str) -> dict[str, str]:
        """Return Kafka's client settings for the listener with SASL, with a token of this endpoint."""
        login = f"clientId={_quoted(client)} clientSecret={_quoted(secret)}"
        return {
            "security.protocol": "SASL_SSL",
            **self.trust(),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{_OAUTH_HANDLERS}LoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": endpoint,
            "sasl.jaas.config": f"{_MODULES['OAUTHBEARER']} required {login};",
        }

    def trust(self) -> dict[str, str]:
        """Return the client settings that make a client trust the brokers."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority.certificate)}

    def broker_settings(self, ports: Ports, mutual_port: int) -> dict[str, str]:
        """Return the settings of a broker on these ports. `mutual_port` is for clients with certificates."""
        listeners = f"CLIENT://{HOST}:{ports.client},MUTUAL://{HOST}:{mutual_port}"
        plain = " ".join(f"user_{user}={_quoted(password)}" for user, password in self.users.items())
        login_options = {"PLAIN": f" {plain}"}
        settings = {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{ports.controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CLIENT:SASL_SSL,MUTUAL:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "MUTUAL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._server.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
            "sasl.enabled.mechanisms": ",".join(_MODULES),
        }
        for mechanism, module in _MODULES.items():
            name = f"listener.name.client.{mechanism.lower()}"
            settings[f"{name}.sasl.jaas.config"] = f"{module} required{login_options.get(mechanism, '')};"
        name = "listener.name.client.oauthbearer"
        settings[f"{name}.sasl.server.callback.handler.class"] = f"{_OAUTH_HANDLERS}ValidatorCallbackHandler"
        settings[f"{name}.sasl.oauthbearer.jwks.endpoint.url"] = self.issuer.jwks.as_uri()
        for claim in ("audience", "issuer"):  # the issuer of the tests puts neither into a token
            settings[f"{name}.sasl.oauthbearer.allow.unverified.{claim}"] = "true"
        if self._authorizes:
            super_users = (*self._super_users, _BROKER)
            settings |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": ";".join(f"User:{user}" for user in super_users),
            }
        return settings

    @property
    def java_options(self) -> tuple[str, ...]:
        """The options of a broker's JVM that allow it to read the token keys."""
        return (
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.issuer.jwks.as_uri()}",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={self.issuer.jwks}",
        )

    def add_users(self, bootstrap_servers: str) -> None:
        """Set the SCRAM passwords of all users, at a running cluster."""
        admin = kafka_clients.admin(ClientConfig(bootstrap_servers, self.client_properties()))
        try:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                errors = admin.alter_user_scram_credentials(
                    [
                        UserScramCredentialUpsertion(user, mechanism, password, iterations=SCRAM_ITERATIONS)
                        for user, password in self.users.items()
                    ]
                )
                assert not any(errors.values()), errors
        finally:
            admin.close()


class SecuredBroker(EmbeddedBroker):
    """A real broker in `data_dir` with TLS and SASL. `client_config` is that of the coordinator's user, who
    logs in by SCRAM-SHA-512. `overrides` are further settings of the broker.
    """

    def __init__(
        self,
        data_dir: Path,
        security: ClusterSecurity | None = None,
        *,
        overrides: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.security = security or ClusterSecurity(data_dir / "security")
        ports, self._mutual_port = free_ports(), free_ports().client
        super().__init__(
            data_dir,
            ports=ports,
            overrides={**self.security.broker_settings(ports, self._mutual_port), **overrides},
            java_options=self.security.java_options,
            client_properties=self.security.client_properties(),
        )

    @property
    def client_config(self) -> ClientConfig:
        """The client settings of the coordinator."""
        return self.config_of(COORDINATOR)

    def config_of(self, user: str, mechanism: str = "SCRAM-SHA-512") -> ClientConfig:
        """Return the client settings of a user with a password."""
        return ClientConfig(self.bootstrap_servers, self.security.client_properties(user, mechanism))

    def config_by_certificate(self, user: str) -> ClientConfig:
        return ClientConfig(f"{HOST}:{self._mutual_port}", self.security.certificate_properties(user))

    def config_by_token(self, endpoint: str, client: str, secret: str) -> ClientConfig:
        return ClientConfig(self.bootstrap_servers, self.security.token_properties(endpoint, client, secret))

    def start(self) -> None:
        """Start the broker, and return when all users can log in."""
        super().start()
        try:
            self.security.add_users(self.bootstrap_servers)
        except BaseException:
            self.stop()
            raise


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write client settings into a file that nobody else may read."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={escaped(value)}\n" for name, value in properties.items()))


def grant(client_config: ClientConfig, acls: Iterable[Allowed]) -> None:
    """Add ACLs to a cluster."""
    bindings = [
        ACL(
            f"User:{allowed.user}",
            "*",
            ACLOperation[operation],
            ACLPermissionType.ALLOW,
            ResourcePattern(
                ResourceType[allowed.resource], allowed.name, ACLResourcePatternType[allowed.pattern]
            ),
        )
        for allowed in acls
        for operation in allowed.operations
    ]
    with closing(kafka_clients.admin(client_config)) as admin:
        assert not admin.create_acls(bindings)["failed"]


def _quoted(value: str) -> str:
    """Return a value for sasl.jaas.config."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
