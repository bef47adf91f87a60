"""Flink's checkpointing for Spark Structured Streaming."""
