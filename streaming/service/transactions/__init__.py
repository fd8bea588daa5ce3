"""The reports on the outcomes of transactions to the groups whose offsets are pending in them."""
