"""Reports the deliveries of share groups' records, as gateways counted them: see docs/share-groups.md."""
