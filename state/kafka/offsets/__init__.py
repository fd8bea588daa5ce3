"""Committed offsets: kept, told, deleted, and expired. Source: OffsetMetadataManager.java."""
