"""Agents that live off the log: reader, groups and their kin, and the loop that drives an agent.

They use `shm` alone: neither `brokerd` nor `clients`, so that each can run in any process.
"""
