"""Recordings of groups' logs, and their replay without Spark through the core, the coordinator's group logic.
The outcome is compared with the topics.
"""
