"""A table of Parquet files that is kept equal to a log: `gantrymq ingest`. No Spark is imported."""
