"""Kafka's groups: what their protocols have in common, such as the step, timers, offsets and views.

Rows cited (J1, E7, ...) are those of docs/rules.md and docs/rules-consumer.md. Source:
GroupMetadataManager.java.
"""
