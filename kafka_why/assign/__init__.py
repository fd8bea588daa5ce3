"""Simulates a group's assignment with another assignor, or with one member more or less. No consumer runs."""
