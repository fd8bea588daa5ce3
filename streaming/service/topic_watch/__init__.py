"""The reports to groups on the cluster's topics: deletions, changes, and the matches of patterns."""
