"""Groups of the cluster's own coordinator, scripted, and what `observe` and `why` say of them, judged."""
