"""Metrics that clients push (KIP-714): limits, decoding, and writing to the telemetry topic."""
