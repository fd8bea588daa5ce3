"""What the gateway counts of share groups' records as they pass: see docs/share-groups.md."""
