"""What reads the topics for people: administration, why, what if, metrics, the live view."""
