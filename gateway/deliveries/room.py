"""Bounds that several owners share."""


class Room:
    """Places for so many things of a kind."""

    __slots__ = ("free",)

    def __init__(self, places: int) -> None:
        self.free = places

    def take(self) -> bool:
        """Take a place. Returns whether there was one."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def give(self, places: int = 1) -> None:
        """Give places back."""
        self.free += places
