"""Who gets which partition or queue: pure functions of subscriptions and counts.

Standard library and msgspec only.
"""
