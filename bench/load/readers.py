"""Readers of the page, as browsers are: `python -m bench.load.readers URL NUMBER GROUP...`.

Each keeps a live page open, of all groups or of one group. It requests the page again when the server reports
a change, with the pauses of the page's own script. When the input ends, the number and the bytes of all pages
that were served are printed.
"""

import http.client
import json
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from urllib.parse import urlencode, urlsplit

# As in the page's script: the shortest pause before the next request, and as a multiple of the last duration.
_PAUSE_S, _PAUSE_FACTOR = 0.5, 10
_TIMEOUT_S = 60.0


class Readers:
    """The readers' work, for one thread each. It ends when `stopping` is set."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self.stopping = threading.Event()
        self.responses: Counter[str] = Counter()  # by status, and their bytes

    def follow(self, group_id: str | None) -> None:
        """Keep one page open. A connection that fails is opened again."""
        query = {} if group_id is None else {"group": group_id}
        page = "/" if group_id is None else f"/group?{urlencode({'id': group_id})}"
        self._get(page)
        while not self.stopping.is_set():
            with suppress(OSError, http.client.HTTPException):
                self._follow_events(f"/live?{urlencode(query)}", page)

    def _follow_events(self, events: str, page: str) -> None:
        """Read the event stream `events`, and get the page again when its version changes."""
        with closing(http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", events)
            response = connection.getresponse()
            pause_s, version = _PAUSE_S, None
            while not self.stopping.is_set() and (line := response.readline()):
                if not line.startswith(b"data:"):
                    continue
                new_version = json.loads(line.removeprefix(b"data:"))["version"]
                if new_version != version:
                    version = new_version
                    self.stopping.wait(pause_s)
                    pause_s = max(_PAUSE_S, _PAUSE_FACTOR * self._get(page))

    def _get(self, path: str) -> float:
        """Get a page, and return the seconds that it took."""
        began_s = time.monotonic()
        with (
            suppress(OSError, http.client.HTTPException),
            closing(http.client.HTTPConnection(self._netloc, timeout=_TIMEOUT_S)) as connection,
        ):
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            response = connection.getresponse()
            content = response.read()
            self.responses.update({f"of status {response.status}": 1, "bytes": len(content)})
        return time.monotonic() - began_s


def main() -> None:
    """Read, half of the pages of all groups and half of one group each."""
    url, number, *group_ids = sys.argv[1:]
    readers = Readers(url)
    for index in range(int(number)):
        group_id = group_ids[index % len(group_ids)] if index % 2 else None
        threading.Thread(target=readers.follow, args=(group_id,), daemon=True).start()
    sys.stdin.read()
    readers.stopping.set()
    print(json.dumps(readers.responses))


if __name__ == "__main__":
    main()
