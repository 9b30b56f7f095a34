"""Transactions of a producer, and an operator who settles them."""
