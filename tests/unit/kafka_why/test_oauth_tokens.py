"""Tokens for OAUTHBEARER: got once and replaced in time, and those for MSK's IAM as botocore signs them."""

import base64
import calendar
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.upstream.connections import Sasl
from kafka_why.connections import oauth_tokens
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.oauth_tokens import (
    IAM_LIFETIME_S,
    Credentials,
    IamLogin,
    LoginTokens,
    TokenError,
    TokenLogin,
    TokenSource,
    iam_credentials,
    iam_token,
)
from tests.harness.certificates import TokenEndpoint, TokenIssuer

SECRET = "k3y-0f-the-house"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
def endpoint(issuer: TokenIssuer) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(issuer, {"me": SECRET}) as endpoint:
        yield endpoint


def claims_of(token: str) -> dict[str, object]:
    payload = token.split(".")[1]
    found: dict[str, object] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


def test_clients_of_a_process_share_one_oauth_token(endpoint: TokenEndpoint) -> None:
    login = TokenLogin(endpoint.url, "me", SECRET)
    token = LoginTokens(login).token()
    assert claims_of(token)["sub"] == "me"
    text, expires_s, _, extensions = LoginTokens(login)("")
    assert (text, expires_s, extensions) == (token, claims_of(token)["exp"], {})
    assert endpoint.served == 1


def test_oauth_token_is_replaced_before_expiry(issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch) -> None:
    start_s = time.time()
    with TokenEndpoint(issuer, {"me": SECRET}, lifetime_s=1_000) as endpoint:
        source = TokenSource(TokenLogin(endpoint.url, "me", SECRET))
        for after_s, served in ((0, 1), (700, 1), (900, 2)):
            monkeypatch.setattr(time, "time", lambda after_s=after_s: start_s + after_s)
            source.token()
            assert endpoint.served == served


def test_oauth_token_is_kept_until_expiry_while_its_endpoint_is_down(
    issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_s = time.time()
    at_s = [0.0]
    monkeypatch.setattr(time, "time", lambda: start_s + at_s[0])
    with TokenEndpoint(issuer, {"me": SECRET}, lifetime_s=1_000) as endpoint:
        source = TokenSource(TokenLogin(endpoint.url, "me", SECRET))
        token = source.token()
        source.login = TokenLogin(endpoint.url, "me", "refused")
        for at_s[0] in (900, 990):
            assert source.token() is token
        source.login = TokenLogin(endpoint.url, "me", SECRET)
        at_s[0] = 995
        assert source.token() is token, "the endpoint is asked again after a pause"
        source.login = TokenLogin(endpoint.url, "me", "refused")
        at_s[0] = 1_001
        with pytest.raises(TokenError):
            source.token()
        source.login = TokenLogin(endpoint.url, "me", SECRET)
        assert source.token().expires_s > start_s + 1_001


def test_a_refused_client_is_named_without_its_secret(endpoint: TokenEndpoint) -> None:
    with pytest.raises(TokenError) as raised:
        TokenSource(TokenLogin(endpoint.url, "me", "wrong")).token()
    assert str(raised.value) == (
        f"the token endpoint {endpoint.url} gives client me no token: it answers 401 invalid_client"
    )


def test_token_file_is_reread_when_the_token_is_due(tmp_path: Path, issuer: TokenIssuer) -> None:
    path = tmp_path / "a token"
    source = TokenSource(TokenLogin(path.as_uri()))
    with pytest.raises(TokenError, match="cannot be read: No such file"):
        source.token()
    path.write_text(issuer.token("me") + "\n")
    assert claims_of(source.token().text)["sub"] == "me"
    path.write_text(issuer.token("me", lifetime_s=-1))
    with pytest.raises(TokenError, match="has expired"):
        TokenSource(source.login).token()


def test_repr_of_token_logins_shows_no_secret() -> None:
    token = TokenSource(TokenLogin(None, subject="alice")).token()
    assert token.text not in repr(token)
    assert SECRET not in repr(TokenLogin("https://id.example", "me", SECRET))


AWS_SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
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
def test_iam_token_is_the_url_that_aws_signs(session: str | None, signed: str) -> None:
    text = iam_token("eu-west-1", Credentials("AKIDEXAMPLE", AWS_SECRET, session), NOW_S)
    assert url_of(text) == f"{ASKED}{signed}&User-Agent=spark-group-coordinator"
    assert "=" not in text


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, r"\[default\] of .*credentials has no aws_access_key_id and aws_secret_access_key"),
        ("[default]\naws_access_key_id=AKID\n", "has no aws_access_key_id and aws_secret_access_key"),
        (f"aws_secret_access_key={AWS_SECRET}\n", "cannot be read as a file of AWS credentials"),
    ],
)
def test_missing_iam_credentials_are_reported_without_secrets(
    no_credentials: Path, content: str | None, why: str
) -> None:
    if content is not None:
        no_credentials.write_text(content)
    with pytest.raises(TokenError, match=why) as raised:
        iam_credentials(IamLogin("eu-west-1"))
    assert AWS_SECRET not in repr((raised.value, raised.value.__context__))
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
def test_iam_login_is_a_token_in_python_and_a_class_in_java(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
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
    assert AWS_SECRET not in f"{config!r} {python} {librdkafka} {java}"


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        ("boot-1.c2.kafka-serverless.us-east-1.amazonaws.com:9098", "us-east-1"),
        ("b-1-public.x.y.c3.kafka.ap-southeast-2.amazonaws.com:9198", "ap-southeast-2"),
        ("proxy.example:9098", "eu-central-1"),
    ],
)
def test_iam_region_comes_from_the_brokers_or_the_environment(
    tmp_path: Path, servers: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    login = config_of(tmp_path, IAM, servers)._security().login
    assert login == IamLogin(region)
