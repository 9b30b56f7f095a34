"""The txn-checker: half messages, their decisions, checks and giving up."""
