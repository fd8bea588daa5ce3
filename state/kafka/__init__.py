"""Kafka's groups: what their protocols have in common, such as the step, timers, offsets and views.

Rows, such as J1 or E7, are rules of docs/rules.md and the other docs/rules-*.md. Source:
GroupMetadataManager.java.
"""
