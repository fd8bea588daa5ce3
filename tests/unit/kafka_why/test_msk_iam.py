"""Tokens for MSK's IAM, checked by signatures of botocore 1.44, and the logins that ask for them."""

import base64
import calendar
import time
from pathlib import Path

import pytest

from gateway.upstream.sasl import Sasl
from kafka_why.connections import oauth_tokens
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.oauth_tokens import (
    IAM_LIFETIME_S,
    Credentials,
    CredentialsError,
    IamLogin,
    TokenError,
    TokenSource,
    iam_credentials,
    iam_token,
)

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SESSION = "FwoGZXIvYXdz//example+token=="
NOW_S = calendar.timegm((2026, 3, 1, 12, 0, 0))
HOST = "b-1.orders.a1b2.c3.kafka.eu-west-1.amazonaws.com:9098"
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
ASKED = (
    "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIDEXAMPLE%2F20260301%2Feu-west-1%2Fkafka-cluster%2Faws4_request"
    "&X-Amz-Date=20260301T120000Z&X-Amz-Expires=900"
)
IAM = f"security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\nsasl.jaas.config={MODULE} required;\n"
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION")


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of credentials, which does not exist yet. The environment has none either."""
    for name in (*NAMES, "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


def url_of(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def config_of(tmp_path: Path, text: str, servers: str = HOST) -> ClientConfig:
    path = tmp_path / "client.properties"
    path.write_text(f"bootstrap.servers={servers}\n{text}")
    return ClientConfig.read(path)


@pytest.mark.parametrize(
    ("session", "signed"),
    [
        (
            None,
            "&X-Amz-SignedHeaders=host"
            "&X-Amz-Signature=3bdf39b5ae22e00c64989b5fef2d88bae252c7717742c0ebf94d0933d0dd1097",
        ),
        (
            SESSION,
            "&X-Amz-Security-Token=FwoGZXIvYXdz%2F%2Fexample%2Btoken%3D%3D&X-Amz-SignedHeaders=host"
            "&X-Amz-Signature=ecc2246bbb82e851b38cecff2a97232acd7adc70f896f0ad8b608055b2f2a912",
        ),
    ],
)
def test_token_is_the_url_that_aws_signs(session: str | None, signed: str) -> None:
    text = iam_token("eu-west-1", Credentials("AKIDEXAMPLE", SECRET, session), NOW_S)
    assert url_of(text) == f"{ASKED}{signed}&User-Agent=spark-group-coordinator"
    assert "=" not in text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, r"\[default\] of .*credentials has no aws_access_key_id and aws_secret_access_key"),
        ("[default]\naws_access_key_id=AKID\n", "has no aws_access_key_id and aws_secret_access_key"),
        (f"aws_secret_access_key={SECRET}\n", "cannot be read as a file of AWS credentials"),
    ],
)
def test_missing_iam_credentials_are_reported_without_secrets(
    no_credentials: Path, content: str | None, why: str
) -> None:
    if content is not None:
        no_credentials.write_text(content)
    with pytest.raises(CredentialsError, match=why) as raised:
        iam_credentials(IamLogin("eu-west-1"))
    assert SECRET not in repr((raised.value, raised.value.__context__))
    with pytest.raises(TokenError, match=f"no login to MSK by IAM: .*{why}"):
        TokenSource(IamLogin("eu-west-1")).token()


@pytest.mark.parametrize(
    "text",
    [
        f"{IAM}sasl.client.callback.handler.class={HANDLER}\n",
        "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n"
        "sasl.login.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler\n",
    ],
)
def test_login_by_iam_is_a_token_for_python_and_a_class_for_java(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))
    oauth_tokens.source_of.cache_clear()
    config = config_of(tmp_path, text)
    python, librdkafka, java = (
        config.kafka_python_settings(),
        config.librdkafka_settings(),
        config.java_settings(),
    )
    assert python["sasl_mechanism"] == librdkafka["sasl.mechanism"] == "OAUTHBEARER"
    given, expires_s, _, extensions = librdkafka["oauth_cb"]("")
    assert url_of(given).startswith(ASKED)
    assert (expires_s, extensions) == (NOW_S + IAM_LIFETIME_S, {})
    assert python["sasl_oauth_token_provider"].token() == given
    assert given.encode() in Sasl(python).begin().auth_bytes(), "the gateway sends it, too"
    assert java == {
        "bootstrap.servers": HOST,
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{MODULE} required;",
        "sasl.client.callback.handler.class": HANDLER,
    }
    assert ClientConfig(HOST, config.properties).java_settings() == java
    assert SECRET not in f"{config!r} {python} {librdkafka} {java}"


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("boot-1.c2.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-1-public.x.y.c3.kafka.ap-southeast-2.amazonaws.com:9198", "ap-southeast-2"),
        ("proxy.example:9098", "eu-central-1"),
    ],
)
def test_region_is_that_of_the_brokers_or_of_the_environment(
    tmp_path: Path, servers: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    login = config_of(tmp_path, IAM, servers)._security().login
    assert login == IamLogin(region)
