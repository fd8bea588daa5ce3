"""Tokens for OAUTHBEARER: got once and used by all, replaced in time, and their errors."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_why.connections.oauth_tokens import LoginTokens, TokenError, TokenLogin, TokenSource
from tests.harness.tokens import TokenEndpoint, TokenIssuer

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
