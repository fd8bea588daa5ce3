"""Experiments: a group's recorded clients run against the core with other settings, in a closed loop."""
