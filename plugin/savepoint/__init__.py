"""Savepoints: make one of any epoch, start another query from it, take a pipeline back, read and change state as data."""
