"""Groups of the cluster's own coordinator, as its records in `__consumer_offsets` show them."""
