"""The file of `--security-config`: a listener's settings by the names of a Kafka broker."""

from pathlib import Path

import pytest

from gateway.net.server import GatewayOptions
from gateway.security.authentication import ClientAuth, ListenerSecurity, SecurityError, parse
from gateway.service import serving
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from tests.unit.gateway.test_security import DATA, PEM

USERS = DATA / "gateway_users"


def test_all_security_settings_have_kafkas_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PASSWORD", "s3cret")
    config = tmp_path / "security.properties"
    config.write_text(
        f"ssl.keystore.location={PEM}\n"
        "ssl.keystore.type=PEM\n"
        "ssl.key.password=${env:KEY_PASSWORD}\n"
        f"ssl.truststore.location={PEM}\n"
        "ssl.truststore.type=pem\n"
        "ssl.client.auth=requested\n"
        "ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/L, DEFAULT\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-512, PLAIN\n"
        "connections.max.reauth.ms=3600000\n"
    )
    security = ListenerSecurity.read(None, None, USERS, config)
    settings = security.settings
    assert (settings.keystore, settings.truststore, settings.users) == (PEM, PEM, USERS)
    assert (settings.client_auth, settings.key_password) == (ClientAuth.REQUESTED, "s3cret")
    assert settings.mechanisms == ("SCRAM-SHA-512", "PLAIN")
    assert settings.mapper.name_of("CN=Ann,O=Example") == "ann"
    assert settings.max_reauth_ms == 3_600_000
    assert security.session(None).mechanisms == ["SCRAM-SHA-512", "PLAIN"]
    assert "s3cret" not in repr(settings)


def test_windows_file_with_kafkas_config_provider_is_read(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\r\n")
    config = tmp_path / "security.properties"
    config.write_bytes(
        f"ssl.keystore.location = {PEM} \r\nconfig.providers=secrets\r\n"
        "config.providers.secrets.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider\r\n"
        f"ssl.key.password=${{secrets:{tmp_path}:password}}\r\n".encode("utf-8-sig")
    )
    settings = ListenerSecurity.read(None, None, None, config).settings
    assert (settings.keystore, settings.key_password) == (PEM, "s3cret")


def test_token_settings_are_parsed() -> None:
    settings = parse(
        {
            "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/keys%20of/jwks.json",
            "sasl.oauthbearer.expected.issuer": "https://idp",
            "sasl.oauthbearer.expected.audience": "kafka, gateway",
            "sasl.oauthbearer.scope.claim.name": "roles",
            "sasl.oauthbearer.sub.claim.name": "user",
            "sasl.oauthbearer.clock.skew.seconds": "5",
        }
    )
    assert settings.jwks == Path("/etc/keys of/jwks.json")
    tokens = settings.tokens
    assert (tokens.issuer, tokens.audience, tokens.clock_skew_s) == ("https://idp", ("kafka", "gateway"), 5)
    assert (tokens.scope_claim_name, tokens.sub_claim_name) == ("roles", "user")
    assert parse({}).tokens.clock_skew_s == 30


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"ssl.keystore.locaton": "x"}, "ssl.keystore.locaton is not a setting"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type: only PEM can be read"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth: is one of none, requested, required"),
        ({"ssl.client.auth": "required"}, "needs ssl.keystore.location"),
        ({"ssl.client.auth": "required", "ssl.keystore.location": "x"}, "needs ssl.truststore.location"),
        (
            {"ssl.principal.mapping.rules": "RULE:x"},
            "ssl.principal.mapping.rules: 'RULE:x' is neither DEFAULT",
        ),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms: needs one or more of PLAIN, SCRAM"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms: needs one or more of"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs a users file"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url"),
        ({"connections.max.reauth.ms": "-1"}, "connections.max.reauth.ms: needs a number from 0"),
        ({"connections.max.reauth.ms": "1h"}, "connections.max.reauth.ms: needs a number from 0"),
        ({"connections.max.reauth.ms": "9" * 5_000}, "connections.max.reauth.ms: needs a number from 0"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "https://idp/jwks"}, "file:///PATH is needed"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file://host/jwks"}, "file:///PATH is needed"),
    ],
)
def test_contradictory_security_settings_are_named(properties: dict[str, str], why: str) -> None:
    with pytest.raises(SecurityError) as refused:
        parse(properties)
    assert why in str(refused.value)


def test_security_error_names_its_file_once(tmp_path: Path) -> None:
    config = tmp_path / "security.properties"
    config.write_text(f"ssl.keystore.location={PEM}\n")
    with pytest.raises(SecurityError, match=r"ssl\.keystore\.location and an option of the command"):
        ListenerSecurity.read(PEM, None, None, config)
    config.write_text("ssl.key.password=${env:NO_SUCH_NAME}\n")
    with pytest.raises(SecurityError, match=r"ssl\.key\.password in .* cannot be read: it is not set"):
        ListenerSecurity.read(None, None, None, config)


def test_sasl_passthrough_and_users_of_the_gateway_exclude_each_other() -> None:
    assert ListenerSecurity(brokers_authenticate=True).is_sasl_required
    assert not ListenerSecurity(brokers_authenticate=True).session(None).is_open
    with pytest.raises(SecurityError, match="the brokers authenticate the clients"):
        ListenerSecurity.read(None, None, USERS, brokers_authenticate=True)


@pytest.mark.parametrize("properties", [{}, {"security.protocol": "SSL"}])
def test_brokers_without_sasl_cannot_authenticate_clients(properties: dict[str, str]) -> None:
    options = GatewayOptions(
        ClientConfig("broker.invalid:9092", properties),
        TopicLayout.named("t"),
        Address("127.0.0.1", 0),
        security=ListenerSecurity.read(None, None, None, brokers_authenticate=True),
    )
    with pytest.raises(SecurityError, match=r"security\.protocol has no SASL"), serving(options):
        pass
