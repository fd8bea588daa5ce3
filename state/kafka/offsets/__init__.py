"""Committed offsets: commit, fetch, deletion and expiry. Source: OffsetMetadataManager.java."""
