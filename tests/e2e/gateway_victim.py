"""A consumer in its own process, which a test kills. It prints the values that it reads, and commits the
first ones.

    python -m tests.e2e.gateway_victim LIBRARY SERVERS GROUP TOPIC SESSION_MS VALUES_TO_COMMIT
"""

import sys
import time

from tests.e2e.gateway_clients import ConfluentMember, PythonMember

COMMITTED = "committed"


def main() -> None:
    """Read until killed."""
    library, servers, group_id, topic, session_ms, values_to_commit = sys.argv[1:]
    kind = {kind.__name__: kind for kind in (PythonMember, ConfluentMember)}[library]
    member = kind(servers, group_id, topic, session_ms=int(session_ms))
    seen = 0
    while True:
        for value in member.poll():
            sys.stdout.write(f"{value}\n")
            seen += 1
            if seen == int(values_to_commit):
                member.commit()
                sys.stdout.write(f"{COMMITTED}\n")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
