"""The time in the log: clock records, and how often they are appended."""
