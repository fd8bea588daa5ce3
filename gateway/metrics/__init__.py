"""What a gateway counts and measures, as plain numbers that several processes can add up."""
