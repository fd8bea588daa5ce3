"""Why a group rebalanced: its history read as a timeline of rebalances, told as text, JSON or a picture."""
