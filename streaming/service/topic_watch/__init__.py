"""Reports to groups about the cluster's topics: deletions, changes, and matches of patterns."""
