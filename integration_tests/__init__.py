"""Tests with real brokers, real Spark and real Delta tables."""
