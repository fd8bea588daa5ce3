"""The state of a coordinator's process, as it serves it."""
