"""What the service tells groups about the cluster's topics: which were deleted or changed, which a pattern
matches.
"""
