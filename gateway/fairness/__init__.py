"""Fair shares of what all clients wait for: none of them delays the others by how much it sends."""
