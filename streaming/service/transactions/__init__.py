"""What the service tells groups about transactions: how the transactions of their pending offsets ended."""
