"""A running server held to the reference implementation."""
