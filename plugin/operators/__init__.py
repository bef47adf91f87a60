"""Keyed operators on Spark: how rows, state and time reach the functions of :mod:`lockstep.state`."""
