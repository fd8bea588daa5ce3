"""Child processes, and all descendants of a process: for the demo, the measurements and the tests."""
