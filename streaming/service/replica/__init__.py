"""The replica's process, kept running."""
