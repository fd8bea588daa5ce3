"""Assignors: pure functions from subscriptions and partition or queue counts to each member's share.

The package imports the standard library and msgspec only.
"""
