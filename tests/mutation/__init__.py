"""Small planted mistakes in the pure packages, which the layers of tests have to find. See docs/tests.md."""
