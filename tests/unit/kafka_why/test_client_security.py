"""The settings of a connection: what each kind of client makes of them, and what is refused."""

from pathlib import Path

import pytest

from kafka_why.connections.client_config import (
    PROTOCOLS,
    ClientConfig,
    java_settings,
    read_security,
    security_of,
)
from kafka_why.connections.client_login import LoginModule, format_jaas
from kafka_why.connections.used_settings import ClientConfigError, UsedSettings
from tests.harness.certificates import Authority
from tests.harness.secured_broker import TOOLS, USERS, ClusterSecurity

SERVERS = "kafka:9092"
SECRET = "k3y-0f-the-house"
PASSWORD = USERS[TOOLS]
PACKAGE = "org.apache.kafka.common.security"
SCRAM = f"{PACKAGE}.scram.ScramLoginModule"
PLAIN = f"{PACKAGE}.plain.PlainLoginModule"
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
ENDPOINT = "https://id.example/token"
SASL = {"security.protocol": "SASL_PLAINTEXT"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterSecurity:
    return ClusterSecurity(tmp_path_factory.mktemp("security"))


def login(module: str, **options: str) -> dict[str, str]:
    return {"sasl.jaas.config": format_jaas(LoginModule(module, options))}


def test_scram_user_is_escaped_for_clients_that_do_not_escape_it() -> None:
    config = ClientConfig(
        SERVERS,
        {**SASL, "sasl.mechanism": "SCRAM-SHA-256", **login(SCRAM, username="a=b,c", password=SECRET)},
    )
    assert config.kafka_python_settings()["sasl_plain_username"] == "a=3Db=2Cc"
    assert config.librdkafka_settings()["sasl.username"] == "a=b,c"


def test_security_settings_do_not_depend_on_local_files_once_read(cluster: ClusterSecurity) -> None:
    """Executors are given the settings without the files that they name."""
    properties = cluster.certificate_properties("alice")
    read = java_settings(security_of(properties))
    assert java_settings(security_of(read)) == read
    assert not [name for name, value in read.items() if str(cluster.folder) in value]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"security.protocol": "TLS"}, f"security.protocol: 'TLS' is not one of {', '.join(PROTOCOLS)}"),
        (
            SASL,
            "sasl.mechanism: GSSAPI (Kerberos), Kafka's default, is not supported. Use PLAIN, SCRAM-SHA-256",
        ),
        (
            {**SASL, "sasl.mechanism": "GSSAPI"},
            "sasl.mechanism: GSSAPI (Kerberos) is not supported. Use PLAIN",
        ),
        (
            {**SASL, "sasl.mechanism": "plain"},
            "sasl.mechanism: 'plain' is not one of PLAIN, SCRAM-SHA-256, SCRAM",
        ),
        (
            {**SASL, "sasl.mechanism": "PLAIN"},
            "sasl.mechanism=PLAIN needs sasl.jaas.config, or sasl.username and sasl.password",
        ),
        (
            {
                **SASL,
                "sasl.mechanism": "PLAIN",
                "sasl.client.callback.handler.class": "com.example.Handler",
                **login(PLAIN, username="a", password=SECRET),
            },
            "sasl.client.callback.handler.class: 'com.example.Handler' is a class of Java",
        ),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN} required password={SECRET}"},
            "sasl.jaas.config: it does not end",
        ),
        ({**SASL, "sasl.mechanism": "PLAIN", **login(SCRAM, username="a")}, f"module of PLAIN is {PLAIN}"),
        ({**SASL, "sasl.mechanism": "PLAIN", **login(PLAIN, username="a")}, "its password is missing"),
        (
            {**SASL, "sasl.mechanism": "PLAIN", **login(PLAIN, username="a", pasword=SECRET)},
            "sasl.jaas.config: pasword: did you mean password?",
        ),
        (
            {**SASL, "sasl.mechanism": "OAUTHBEARER", **login(OAUTH)},
            "needs sasl.oauthbearer.token.endpoint.url",
        ),
        (
            {
                **SASL,
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": f"https://me:{SECRET}@id.example",
                **login(OAUTH),
            },
            "sasl.oauthbearer.token.endpoint.url is not a URL with http, https or file, and without a user",
        ),
        (
            {
                **SASL,
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
                **login(OAUTH, clientId="me"),
            },
            "needs clientId and clientSecret",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/no/such"},
            "ssl.truststore.location: '/no/such' cannot be read: No such",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": SECRET}, "it has no certificate as PEM"),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
            },
            "ssl.truststore.certificates: the trusted certificates cannot be used",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.key": SECRET},
            "ssl.keystore.certificate.chain and ssl.keystore.key belong together",
        ),
        (
            {"security.protocol": "SSL", "ssl.certificate.pem": SECRET},
            "ssl.certificate.pem and ssl.key.pem belong together",
        ),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldap"},
            "'ldap' is not supported. Use https or",
        ),
    ],
)
def test_refused_setting_is_named_without_its_value(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ClientConfigError) as raised:
        security_of(properties)
    assert why in str(raised.value)
    assert SECRET not in str(raised.value)


def test_settings_of_an_unused_protocol_or_mechanism_are_ignored() -> None:
    """As for Kafka's own clients. `ClientConfig.read` logs them."""
    plain = {**SASL, "sasl.mechanism": "PLAIN", **login(PLAIN, username="a", password=SECRET)}
    others = {
        "ssl.key.password": SECRET,
        "sasl.oauthbearer.scope": "x",
        "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
        "sasl.login.callback.handler.class": "x",
        "acks": "all",
    }
    settings = UsedSettings(plain | others)
    assert read_security(settings) == security_of(plain)
    assert settings.unused == sorted(others)


def test_a_key_with_another_password_is_refused(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("alice", password=SECRET)
    for given in ({}, {"ssl.key.password": "another"}):
        with pytest.raises(ClientConfigError, match=r"ssl\.keystore\.location: the certificate and its key"):
            security_of({"security.protocol": "SSL", "ssl.keystore.location": str(issued.both), **given})


def test_a_key_that_java_cannot_read_is_refused() -> None:
    key = f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n-----END EC PRIVATE KEY-----"
    chain = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    stores = {"ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    with pytest.raises(ClientConfigError, match=r"ssl\.keystore\.key: .* EC PRIVATE KEY, not PKCS#8"):
        security_of({"security.protocol": "SSL", **stores})


def test_no_text_of_the_settings_has_a_secret(cluster: ClusterSecurity) -> None:
    for properties in (cluster.client_properties(TOOLS), cluster.certificate_properties("alice")):
        text = repr(security_of(properties))
        assert PASSWORD not in text
        assert "PRIVATE KEY" not in text
