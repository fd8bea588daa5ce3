"""The records of `__consumer_offsets`, in which a cluster's own coordinator stores its groups."""
