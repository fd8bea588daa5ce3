"""Readers of the page, as browsers are: `python -m bench.load.readers URL NUMBER GROUP...`.

Each keeps a page open that is live, of all groups or of one, and asks for it again when something has
changed, with the pauses of the page's own script. When its input ends it prints how many pages it was given,
and of how many bytes.
"""

import http.client
import json
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from urllib.parse import urlencode, urlsplit

_PAUSE_S, _TIMES = 0.5, 10
_TIMEOUT_S = 60.0


class Readers:
    """Readers that read until `stopping`."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self.stopping = threading.Event()
        self.seen: Counter[str] = Counter()

    def follow(self, group_id: str | None) -> None:
        """Keep one page open. A connection that fails is opened again."""
        which = {} if group_id is None else {"group": group_id}
        page = "/" if group_id is None else f"/group?{urlencode({'id': group_id})}"
        self._get(page)
        while not self.stopping.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._live(f"/live?{urlencode(which)}", page)

    def _live(self, live: str, page: str) -> None:
        with closing(http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", live)
            response = connection.getresponse()
            pause_s, version = _PAUSE_S, None
            while not self.stopping.is_set() and (line := response.readline()):
                if not line.startswith(b"data:"):
                    continue
                told = json.loads(line.removeprefix(b"data:"))["version"]
                if told != version:
                    version = told
                    self.stopping.wait(pause_s)
                    pause_s = max(_PAUSE_S, _TIMES * self._get(page))

    def _get(self, path: str) -> float:
        """Return the seconds that a page took."""
        began_s = time.monotonic()
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)) as connection,
        ):
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            response = connection.getresponse()
            content = response.read()
            self.seen.update({f"of status {response.status}": 1, "bytes": len(content)})
        return time.monotonic() - began_s


def main() -> None:
    """Read, half of the pages of all groups and half of one group each."""
    url, number, *group_ids = sys.argv[1:]
    readers = Readers(url)
    for n in range(int(number)):
        group_id = group_ids[n % len(group_ids)] if n % 2 else None
        threading.Thread(target=readers.follow, args=(group_id,), daemon=True).start()
    sys.stdin.read()
    readers.stopping.set()
    print(json.dumps(readers.seen))


if __name__ == "__main__":
    main()
