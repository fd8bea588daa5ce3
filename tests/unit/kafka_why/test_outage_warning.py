"""The number of log lines of an outage."""

from structlog.testing import capture_logs

from kafka_why.lifetimes import OutageWarning


def test_two_minute_outage_logs_three_lines() -> None:
    now_s = 0.0
    warning = OutageWarning("reading", now_s=lambda: now_s)
    with capture_logs() as lines:
        warning.worked()
        while now_s < 120.0:
            warning.failed(ConnectionError("refused"))
            now_s += 1.0
            warning.worked()  # a poll that returns before the connection fails
            now_s += 0.5
        warning.worked()
        now_s += 10.0
        warning.worked()
        warning.worked()
    assert [(line["event"], line["attempts"]) for line in lines] == [
        ("reading failed, trying again", 1),
        ("reading failed, trying again", 41),
        ("reading works again", 80),
    ]
    assert lines[1]["for_s"] == 60.0
