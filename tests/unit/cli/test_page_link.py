"""The links of commands to the page, and where they say it is."""

import pytest
from click.testing import CliRunner

from cli import main
from kafka_why.cli.parameters import link

NOBODY = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.mark.parametrize("page_url", ["http://127.0.0.1:8080", "http://127.0.0.1:8080/"])
def test_page_link_leads_to_groups_with_any_name(page_url: str) -> None:
    assert link(page_url) == "http://127.0.0.1:8080/"
    assert link(page_url, "orders") == "http://127.0.0.1:8080/group?id=orders"
    assert link(page_url, "a&b=c/\N{SNOWMAN}\n") == (
        "http://127.0.0.1:8080/group?id=a%26b%3Dc%2F%E2%98%83%0A"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["why", "g", "--page-url"],
        ["groups", "describe", "--group", "g", "--page-url"],
        ["page", "--metrics-url"],
    ],
)
@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "javascript:alert(1)", "http://", "http://[", "http://h/?q=1"]
)
def test_invalid_page_url_is_a_usage_error(command: list[str], url: str) -> None:
    result = CliRunner().invoke(main, [*command, url, *NOBODY])
    assert result.exit_code in (1, 2)
    assert "expected is an address such as http://127.0.0.1:8080/" in result.stderr
