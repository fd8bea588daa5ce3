"""The pages that run a command: they run it for a reader of the page, and for no other site."""

import re
import socket
from html import unescape
from urllib.parse import urlencode

from insight.page.commands import Source
from tests.unit.insight.test_page_access import answer, serving, status

NO_CHECKPOINT = Source(checkpoint="/nowhere/coordinator", properties="bootstrap.servers=127.0.0.1:1\n")


def replay(group_id: str = "orders", **parameters: str) -> str:
    return f"/replay?{urlencode({'group': group_id, 'at': '1795230000000', **parameters})}"


def said(listening: socket.socket, path: str, **headers: str) -> str | None:
    """The answer of the command on a page, None if it was not run."""
    found, _, page = answer(listening, path, **headers)
    assert found == 200
    shown = re.search('id="answer">(.*)</pre>', page.decode(), re.DOTALL)
    return None if shown is None else unescape(shown[1])


def test_a_button_of_the_page_runs_it_and_a_link_of_another_site_does_not() -> None:
    with serving(log=NO_CHECKPOINT) as listening:
        assert said(listening, replay()) is None
        for site in ("cross-site", "same-site"):
            headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
            assert said(listening, replay(run="1"), **headers) is None
        for headers in ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate"}, {}):
            shown = said(listening, replay(run="1"), **headers)
            assert shown is not None and "/nowhere/coordinator" in shown


def test_without_a_checkpoint_the_page_says_where_to_ask() -> None:
    with serving() as listening:
        for kind in ("replay", "whatif"):
            found, _, page = answer(listening, f"/{kind}?group=g&at=1&run=1")
            assert found == 404 and b"beside the coordinator" in page


def test_what_is_too_much_is_refused() -> None:
    with serving(log=NO_CHECKPOINT) as listening:
        assert status(listening, f"/whatif?group=g&at=1&{urlencode({'try': 'x' * 301})}") == 400
        assert status(listening, f"/whatif?group=g&at=1&{'try=x&' * 5}") == 400
        assert [status(listening, f"/replay?group=g&at={at}") for at in ("x", "-1", "9" * 16, "")] == [
            400
        ] * 4


def test_the_name_of_a_group_is_text_everywhere() -> None:
    name = "\"><script>alert(1)</script>'; rm -rf /"
    with serving(log=NO_CHECKPOINT) as listening:
        _, _, page = answer(listening, replay(name))
        assert b"<script>alert" not in page
        assert said(listening, replay(name, run="1")) is not None
