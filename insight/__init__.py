"""Tools for people that read the topics: administration, why, what-if, metrics, the live view."""
