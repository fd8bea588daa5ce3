"""Run all measurements and print a table of each kind. `--quick` takes fewer samples."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from bench.gateway import PARTS, Gateway
from bench.plot import draw_latencies
from bench.report import Table, as_json
from bench.topics import measure_topics
from cli.logs import configure_logs

TOPICS, GATEWAY, HEARTBEATS = "topics", "gateway", "heartbeats"


def main() -> None:
    """Run the selected measurements; the exit code is 0 if all limits were kept."""
    parser = _parser()
    given = parser.parse_args()
    parts = {None: {TOPICS, *PARTS}, GATEWAY: {*PARTS}}.get(given.only, {given.only})
    if given.plot is not None and HEARTBEATS not in parts:
        parser.error("--plot draws heartbeats, but heartbeats are not selected")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stops the processes that it started
    configure_logs()
    tables: list[Table] = []
    gateway = Gateway(quick=given.quick)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if TOPICS in parts:
            tables.append(measure_topics(Path(folder) / TOPICS, quick=given.quick))
        if parts & PARTS.keys():
            tables.append(gateway.measure(Path(folder) / GATEWAY, frozenset(parts)))
    print("\n\n".join(table.text() for table in tables))
    if given.json is not None:
        given.json.write_text(as_json(tables))
    if given.plot is not None:
        draw_latencies(gateway.beats_of, given.plot)
    sys.exit(0 if all(table.held for table in tables) else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take fewer samples")
    parser.add_argument(
        "--only", choices=[TOPICS, GATEWAY, *PARTS], help="run one part; gateway: all but topics"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the heartbeats' latencies (PNG)")
    return parser


if __name__ == "__main__":
    main()
