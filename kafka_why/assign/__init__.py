"""Simulates a group's assignment with another assignor, or with a member more or less; no consumer runs."""
