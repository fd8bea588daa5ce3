"""Administrators' requests to the coordinator: describe, reset offsets, delete, release."""
