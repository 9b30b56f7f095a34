"""Rows of Spark into topics: staged by tasks, sent by the driver, once."""
