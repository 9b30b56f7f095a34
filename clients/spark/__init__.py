"""The Spark data source over the segments of a store."""
