"""The contract of a function: how it is called, and what it means by each of its options."""
