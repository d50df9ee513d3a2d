"""The function that is judged: where it comes from, and one call of it."""
