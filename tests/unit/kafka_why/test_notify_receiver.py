"""Requests to a real web server on loopback: what its answers mean, secrets, TLS."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_why.connections.pem import client_context
from kafka_why.notify.receiver import (
    NOT_PRIVATE,
    Answer,
    Receiver,
    SecretUnreadable,
    Verdict,
    checked_url,
    is_private,
    read_first_line,
    read_url,
)
from tests.harness.certificates import Authority
from tests.harness.ports import free_port
from tests.harness.webhook import HANG, Reply, Webhook

SHORT_S, LONG_S = 0.5, 60.0
SECRET = "/services/T0/B0/s3cret"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


def receiver(
    url: str,
    token: Callable[[], str | None] = lambda: None,
    context: ssl.SSLContext | None = None,
    timeout_s: float = LONG_S,
) -> Receiver:
    return Receiver(lambda: url, token, context or client_context(None), timeout_s)


def post(*replies: Reply, timeout_s: float = LONG_S) -> Answer:
    with Webhook(*replies) as webhook:
        return receiver(webhook.url(), timeout_s=timeout_s).post(b"{}")


def test_notify_request_is_json_with_a_bearer_token() -> None:
    with Webhook() as webhook:
        answer = receiver(webhook.url("/a?b=c"), lambda: "t0ken").post(b'{"a": 1}')
    assert answer == Answer(Verdict.ACCEPTED)
    (got,) = webhook.received
    assert (got.path, got.body) == ("/a?b=c", {"a": 1})
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["Authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.ACCEPTED, (200, 201, 202, 204)),
        (Verdict.REFUSED, (400, 413, 422)),
        (Verdict.FAILED, (401, 403, 404, 408, 410, 429, 500, 502, 503)),
    ],
)
def test_http_status_decides_between_accepted_refused_and_retry(
    verdict: Verdict, statuses: tuple[int, ...]
) -> None:
    replies = [Reply(status, body=b"invalid_payload") for status in statuses]
    reasons = [f"it answers {status} invalid_payload" for status in statuses]
    expected = [Answer(verdict, "" if verdict is Verdict.ACCEPTED else reason) for reason in reasons]
    with Webhook(*replies) as webhook:
        sending = receiver(webhook.url())
        assert [sending.post(b"{}") for _ in statuses] == expected


def test_hanging_and_absent_receivers_are_failures() -> None:
    assert post(Reply(HANG), timeout_s=SHORT_S) == Answer(
        Verdict.FAILED, f"no complete answer within {SHORT_S} s"
    )
    gone = receiver(f"http://127.0.0.1:{free_port()}/").post(b"{}")
    assert (gone.verdict, "refused" in gone.reason) == (Verdict.FAILED, True)


def test_receiver_redirect_is_not_followed() -> None:
    with Webhook() as other, Webhook(Reply(302, {"Location": other.url()})) as webhook:
        answer = receiver(webhook.url(), lambda: "t0ken").post(b"{}")
    assert answer == Answer(Verdict.FAILED, "it answers 302")
    assert other.received == []


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), ("-3", None), ("9" * 99, None)]
)
def test_retry_after_header_is_parsed_as_seconds(header: str, seconds: float | None) -> None:
    assert post(Reply(429, {"Retry-After": header})).retry_after_s == seconds


def test_failure_reason_contains_neither_url_nor_token() -> None:
    """A receiver may answer with what it got."""
    with Webhook(default=Reply(403, body=f"no t0ken at {SECRET} k3y\n\x1b[2J".encode())) as webhook:
        answer = receiver(webhook.url(f"{SECRET}?k3y"), lambda: "t0ken").post(b"{}")
    assert answer.reason == "it answers 403 no *** at *** ***\\n\\x1b[2J"
    broken = receiver("http://127.0.0.1:1" + SECRET).post(b"{}")
    assert "s3cret" not in broken.reason


def test_long_receiver_response_is_read_only_in_part() -> None:
    answer = post(Reply(500, body=b"x" * 2_000_000))
    assert answer.verdict is Verdict.FAILED and len(answer.reason) == 200


@pytest.mark.parametrize("content", [b"", b"\nsecond line", b"\xff\xfe"])
def test_secret_file_without_a_secret_is_named_and_not_quoted(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(SecretUnreadable, match=str(file)):
        read_first_line(file)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.org/s3cret",
        "ftp://hooks.example.org/s3cret",
        "file:///etc/s3cret",
        "https:///s3cret",
        "https://user:s3cret@hooks.example.org/",
        "https://hooks.example.org/s3cret /",
        "https://hooks.example.org/s3crét",
        "https://[::1/s3cret",
        "https://hooks.example.org:99999/s3cret",
    ],
)
def test_unusable_receiver_url_is_refused_and_not_quoted(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        checked_url(url)
    assert "s3cret" not in str(refused.value)
    file = tmp_path / "url"
    file.write_text(url + "\n")
    with pytest.raises(SecretUnreadable) as unreadable:
        read_url(file)
    assert "s3cret" not in str(unreadable.value)


def test_token_is_sent_only_over_tls_or_loopback() -> None:
    told = receiver("http://hooks.example.org/", lambda: "t0ken").post(b"{}")
    assert told == Answer(Verdict.FAILED, NOT_PRIVATE)
    assert is_private("https://hooks.example.org/")
    assert (
        is_private("http://127.0.0.1:8080/")
        and is_private("http://localhost/")
        and is_private("http://[::1]/")
    )
    assert not is_private("http://localhost.example.org/")


def test_receiver_certificate_is_verified_also_for_its_host(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    trusted, stranger = (client_context(it.certificate.read_text()) for it in (ours, other))
    right, of_another_host = ours.issue("receiver"), ours.issue("another", hosts=["hooks.example.org"])
    for issued, context, reason in (
        (right, trusted, ""),
        (right, client_context(None), "certificate verify failed"),
        (right, stranger, "certificate verify failed"),
        (of_another_host, trusted, "not valid"),
    ):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(issued.chain, issued.key)
        with Webhook(tls=tls) as webhook:
            answer = receiver(webhook.url(), context=context).post(b"{}")
        assert (answer.verdict, bool(webhook.received)) == (
            (Verdict.FAILED, False) if reason else (Verdict.ACCEPTED, True)
        )
        assert reason in answer.reason
