"""The reports to groups on the outcomes of the transactions of their pending offsets."""
